"""Workers that are started again in every epoch.

What it finds: A DataLoader with `num_workers`, without `persistent_workers`, that is read in a loop of epochs.

Why it costs: Worker processes end with each epoch, and the next one starts new ones, which have to load before there is
a batch. Under spawn (the default on Windows and macOS) each imports everything again and gets the data set again.

When to ignore it: Where epochs are long, or memory is short: the workers of all loaders stay.

Fix: Give `persistent_workers=True`.

Safety: Unsafe: workers keep their copy of the data set, so they miss what the training process changes in it between
epochs, and their random numbers continue from epoch to epoch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.reading.objects.data_loaders import Loader
from hasten.doctor.rule import Code, Found, Safety, SourceRule


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
    fix="give persistent_workers=True",
    safety=Safety.UNSAFE,
    technique="persistent_workers",
    check=check,
)
