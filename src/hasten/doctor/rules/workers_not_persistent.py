"""Workers that are started again in every epoch.

What it finds: A DataLoader with `num_workers` and without `persistent_workers`, that is gone through again and again in
a loop of epochs.

Why it costs: At the end of each epoch the worker processes end, and the next epoch starts new ones. Until they have
started and loaded, there is no batch. Where a process begins as a new Python (spawn, the default on Windows and macOS),
it imports everything again, and the data set is sent to it again.

When to ignore it: Where epochs are so long that the start does not count, or where several loaders would hold more
memory than there is: persistent workers stay.

Fix: Give `persistent_workers=True`.

Safety: Unsafe: workers keep their copy of the data set, so what the training process changes in it between epochs is
not seen, and their random numbers continue from epoch to epoch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.reading.objects.data_loaders import Loader
from hasten.doctor.rule import Code, Found, Safety, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    for loader in code.loaders:
        if loader.in_workers and loader.argument("persistent_workers") is ABSENT and loader.epochs:
            line = loader.epochs[0].lineno
            yield Found(
                loader.call, f"the loop in line {line} starts its workers again in every turn", edits=_edits(loader)
            )


def _edits(loader: Loader) -> tuple[AddArgument, ...]:
    """Without workers, persistent ones are refused: where an option gives their number, it decides this too."""
    given = loader.argument("num_workers")
    if isinstance(given, ast.Constant):
        return (AddArgument(loader.call, "persistent_workers=True"),)
    if isinstance(given, ast.expr) and given in [each.value for each in loader.call.keywords]:
        return (AddArgument(loader.call, f"persistent_workers={ast.unparse(given)} > 0"),)
    return ()


RULE = SourceRule(
    code="H103",
    severity=Severity.SLOW,
    fix="give persistent_workers=True",
    safety=Safety.UNSAFE,
    technique="persistent_workers",
    check=check,
)
