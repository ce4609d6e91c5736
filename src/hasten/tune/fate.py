"""How a trial can fail: each alone, with its class, and without an end to the search."""

from __future__ import annotations

from enum import Enum


class Fate(Enum):
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    HUNG = "hung"
    NON_FINITE = "not finite"
    REFUSED = "refused"
    NOTHING_RAN = "nothing ran"


class ArmFailed(Exception):
    """arm: its name; fate: the class of the failure; what: a sentence, or the error's own words."""

    def __init__(self, arm: str, fate: Fate, what: str) -> None:
        super().__init__(arm, fate, what)
        self.arm, self.fate, self.what = arm, fate, what

    def __str__(self) -> str:
        return f'arm "{self.arm}" {self.fate.value}: {self.what}'
