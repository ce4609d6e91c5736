"""How a trial can fail: each alone, with its class, and without an end to the search."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from hasten.errors import (
    DataFailed,
    Hang,
    HastenError,
    Misconfigured,
    NonFinite,
    OutOfMemory,
    StorageFailed,
    UserCodeFailed,
)
from hasten.facts.texts import printable


class Fate(Enum):
    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "out of disk space"
    CRASHED = "crashed"
    HUNG = "hung"
    NON_FINITE = "not finite"
    REFUSED = "refused"
    NOTHING_RAN = "nothing ran"


class ArmFailed(Exception):
    """arm: its name; fate: the class of the failure; what: a sentence, or the error's own words.

    Those words are the user's code's, and become reasons in trials and plans: here they lose what no terminal shows and
    no file holds."""

    def __init__(self, arm: str, fate: Fate, what: str) -> None:
        what = printable(what)
        super().__init__(arm, fate, what)
        self.arm, self.fate, self.what = arm, fate, what

    def __str__(self) -> str:
        return f'arm "{self.arm}" {self.fate.value}: {self.what}'

    def as_error(self) -> HastenError:
        """As the failure of the job itself, where there is no arm to go on without."""
        return _ERRORS[self.fate](self.what, where=self.arm)


_ERRORS: Mapping[Fate, type[HastenError]] = {
    Fate.OUT_OF_MEMORY: OutOfMemory,
    Fate.DISK_FULL: StorageFailed,
    Fate.CRASHED: UserCodeFailed,
    Fate.HUNG: Hang,
    Fate.NON_FINITE: NonFinite,
    Fate.REFUSED: Misconfigured,
    Fate.NOTHING_RAN: DataFailed,
}
