"""When a technique is applied."""

from __future__ import annotations

from enum import IntEnum


class Stage(IntEnum):
    """The numbers are the order."""

    PROCESS = 0
    DATA = 1
    MODEL = 2
    CLUSTER = 3
    OPTIMIZER = 4
    STEP = 5
    EVALUATION = 6
