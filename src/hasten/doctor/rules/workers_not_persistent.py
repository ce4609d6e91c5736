"""Loader workers that restart in every epoch.

What it finds: A DataLoader with `num_workers` and without `persistent_workers` that a loop over epochs reads.

Why it matters: The worker processes end with each epoch. The next epoch starts new ones and waits for their
first batch. Under spawn, the default on Windows and macOS, each worker also imports the program and unpickles
the data set again.

Fix: Set `persistent_workers=True`.

    loader = DataLoader(data, num_workers=4, persistent_workers=True)

When to ignore: Epochs are long, or memory is short: persistent workers of all loaders stay in memory.

Automatic fix: Unsafe. A persistent worker keeps its copy of the data set, so it misses what the training
process changes in it between epochs. The random numbers of workers continue from epoch to epoch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.reading.objects.data_loaders import Loader
from hasten.doctor.rule import Code, Found, Part, Safety, SourceRule


def check(code: Code) -> Iterator[Found]:
    for loader in code.loaders:
        if loader.in_workers and loader.argument("persistent_workers") is ABSENT and loader.epochs:
            line = loader.epochs[0].lineno
            message = f"the loop in line {line} restarts this DataLoader's workers every epoch"
            yield Found(loader.call, message, edits=_edits(loader))


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
    fix="pass persistent_workers=True",
    safety=Safety.UNSAFE,
    technique="persistent_workers",
    part=Part.TURN,
    check=check,
)
