"""How a trial can fail: each alone, with its class, and without an end to the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hasten import errors
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
from hasten.facts.formatting import printable

LONGEST_MESSAGE = 10_000  # characters of an error's words


class Fate(Enum):
    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "out of disk space"
    CRASHED = "crashed"
    HUNG = "hung"
    NON_FINITE = "not finite"
    REFUSED = "refused"
    NOTHING_RAN = "nothing ran"


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """An error as the process that it was raised in tells it. kind: of errors.py's classes, the one's name; trace: of
    the user's own code, empty where it had no part."""

    kind: str
    what: str
    where: str = ""
    fix: str = ""
    trace: str = ""

    def __post_init__(self) -> None:
        """Raises TypeError for what no serve.py sends; text is cut to what can be read."""
        for name in ("kind", "what", "where", "fix", "trace"):
            text = getattr(self, name)
            if not isinstance(text, str):
                raise TypeError(f"{name} of an error is {type(text).__name__}")
            object.__setattr__(self, name, text[:LONGEST_MESSAGE])

    def as_error(self) -> HastenError | None:
        """None where nobody knows an error of this kind that says no more."""
        kind = getattr(errors, self.kind, None)
        if kind is errors.JobError:
            kind = Misconfigured
        if not (isinstance(kind, type) and issubclass(kind, HastenError)):
            return None
        error = kind(printable(self.what), where=printable(self.where), fix=printable(self.fix))
        if isinstance(error, UserCodeFailed):
            error.trace = "".join(f"{printable(line)}\n" for line in self.trace.splitlines())
        return error


class ArmFailed(Exception):
    """arm: its name; fate: the class of the failure; what: a sentence, or the error's own words; told: the error.

    Those words are the user's code's, and become reasons in trials and plans: here they lose what no terminal shows and
    no file holds."""

    def __init__(self, arm: str, fate: Fate, what: str, told: Told | None = None) -> None:
        what = printable(what[:LONGEST_MESSAGE])
        super().__init__(arm, fate, what, told)
        self.arm, self.fate, self.what, self.told = arm, fate, what, told

    def __str__(self) -> str:
        return f'arm "{self.arm}" {self.fate.value}: {self.what}'

    def as_error(self) -> HastenError:
        """As the failure of the job itself, where there is no arm to go on without."""
        told = None if self.told is None else self.told.as_error()
        kind, fix = _ERRORS[self.fate]
        return told or kind(self.what, fix=fix)


_ERRORS: Mapping[Fate, tuple[type[HastenError], str]] = {
    Fate.OUT_OF_MEMORY: (OutOfMemory, "make the microbatch smaller: hasten explain microbatch"),
    Fate.DISK_FULL: (StorageFailed, "free space on the disk of temporary files, or set TMPDIR to another one"),
    Fate.CRASHED: (UserCodeFailed, "train it once to see it fail: hasten train"),
    Fate.HUNG: (Hang, "train it once to see where it stands: hasten train"),
    Fate.NON_FINITE: (NonFinite, "train it once to see where it begins: hasten train"),
    Fate.REFUSED: (Misconfigured, ""),
    Fate.NOTHING_RAN: (DataFailed, "look at how many batches the training data gives"),
}
