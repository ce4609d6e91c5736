"""How a trial can fail: alone, with its class, and without ending the search."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator, Mapping
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
from hasten.training.failures.as_failure import as_failure, is_out_of_memory
from hasten.users_code import users_traceback

LONGEST_MESSAGE = 10_000  # characters of an error's words
_NO_SPACE = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


class Outcome(Enum):
    """The class of a failure."""

    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "out of disk space"
    CRASHED = "crashed"
    HUNG = "hung"
    NON_FINITE = "not finite"
    REFUSED = "refused"
    NOTHING_RAN = "nothing ran"
    LATE = "too slow to start"


@dataclass(frozen=True, kw_only=True, slots=True)
class SentError:
    """An error of another process. kind: the name of its class in errors.py, empty for an error of hasten itself;
    trace: of the user's own code, empty where it had no part; of hasten itself the whole traceback."""

    kind: str
    what: str
    where: str = ""
    fix: str = ""
    trace: str = ""

    def as_error(self) -> HastenError | None:
        """None for an error of hasten itself."""
        kind = getattr(errors, self.kind, None)
        if kind is errors.JobError:
            kind = Misconfigured
        if not (isinstance(kind, type) and issubclass(kind, HastenError)):
            return None
        error = kind(printable(self.what), where=printable(self.where), fix=printable(self.fix))
        if isinstance(error, UserCodeFailed):
            error.trace = "".join(f"{printable(line)}\n" for line in self.trace.splitlines())
        return error


def sent_error(error: BaseException) -> SentError:
    failure = as_failure(error)
    if failure is None:
        trace = "".join(traceback.format_exception(error))
        return SentError(kind="", what=str(error)[:LONGEST_MESSAGE], trace=trace[-LONGEST_MESSAGE:])
    return SentError(
        kind=type(failure).__name__,
        what=failure.what[:LONGEST_MESSAGE],
        where=failure.where[:LONGEST_MESSAGE],
        fix=failure.fix[:LONGEST_MESSAGE],
        trace=users_traceback(error.__cause__ or error)[-LONGEST_MESSAGE:],
    )


def outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, OutOfMemory) or is_out_of_memory(error):
        return Outcome.OUT_OF_MEMORY
    if isinstance(error, NonFinite):
        return Outcome.NON_FINITE
    if any(isinstance(one, OSError) and one.errno in _NO_SPACE for one in _chain(error)):
        return Outcome.DISK_FULL
    return Outcome.REFUSED if isinstance(error, Misconfigured) else Outcome.CRASHED


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what caused it, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # `raise error from error` is its own cause
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


class ArmFailed(Exception):
    """arm: its name; outcome: the class of the failure; what: a sentence, or the error's own words, which become
    reasons in trials and plans and so lose what no terminal shows; sent: the error."""

    def __init__(self, arm: str, outcome: Outcome, what: str, sent: SentError | None = None) -> None:
        what = printable(what[:LONGEST_MESSAGE])
        super().__init__(arm, outcome, what, sent)
        self.arm, self.outcome, self.what, self.sent = arm, outcome, what, sent

    def __str__(self) -> str:
        return f'arm "{self.arm}" {self.reason}'

    @property
    def reason(self) -> str:
        return f"{self.outcome.value}: {self.what}"

    def as_error(self, plain: str = "hasten train") -> HastenError:
        """As the failure of what is tuned, where no other arm is left. plain: the command that trains it."""
        error = None if self.sent is None else self.sent.as_error()
        kind, fix = _ERRORS[self.outcome]
        return error or kind(self.what, fix=fix.format(plain=plain))


class OutOfTime(Exception):
    """The time that arms had together is over. No arm has failed."""


_ERRORS: Mapping[Outcome, tuple[type[HastenError], str]] = {
    Outcome.OUT_OF_MEMORY: (OutOfMemory, "make the microbatch smaller: hasten explain microbatch"),
    Outcome.DISK_FULL: (StorageFailed, "free space on the disk of temporary files, or set TMPDIR to another one"),
    Outcome.CRASHED: (UserCodeFailed, "run {plain} to see it fail"),
    Outcome.HUNG: (Hang, "run {plain} to see where it hangs"),
    Outcome.NON_FINITE: (NonFinite, "run {plain} to see where it begins"),
    Outcome.REFUSED: (Misconfigured, ""),
    Outcome.LATE: (Hang, "run {plain} to see what it waits for"),
    Outcome.NOTHING_RAN: (DataFailed, "look at how many batches the training data gives"),
}
