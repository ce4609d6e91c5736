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
from hasten.doctor.rule import Code, Found, Safety, SourceRule


def check(code: Code) -> Iterator[Found]:
    for loader in code.loaders:
        if loader.in_workers and loader.argument("persistent_workers") is ABSENT and loader.epochs:
            # Without workers, persistent ones are refused: an option that gives their number may be 0.
            is_sure = isinstance(loader.argument("num_workers"), ast.Constant)
            edits = (AddArgument(loader.call, "persistent_workers=True"),) if is_sure else ()
            message = f"the loop in line {loader.epochs[0].lineno} starts its workers again in every turn"
            yield Found(loader.call, message, edits=edits)


RULE = SourceRule(
    code="H103",
    fix="give persistent_workers=True",
    safety=Safety.UNSAFE,
    technique="persistent_workers",
    check=check,
)
