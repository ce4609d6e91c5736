"""Every error that hasten raises on purpose, and the exit code it ends a command with.

HastenError                1   the base; never raised itself
├── InvalidMeasurement     1   a timing or count that cannot be right
│   └── NotMeasurable     75   other programs use the machine: try again later, as EX_TEMPFAIL of sysexits.h means
├── Misconfigured          2   what was asked for cannot be done
│   ├── JobError           2   a field of the job is wrong
│   ├── NoJob              2   a name leads to no function that returns a job
│   ├── PlanError          2   a plan is wrong, or asks for what does not go together
│   ├── Unavailable        2   an optional part is not installed
│   └── Unreadable         2   a source file cannot be read, or is not Python
├── UserCodeFailed        10   the job's own code raised
├── DataFailed            11   a data set returned nothing, or something unusable
├── OutOfMemory           12   the work does not fit
├── NonFinite             13   a loss or gradient became NaN or infinite
├── Hang                  14   a process or collective stopped responding
├── RankFailed             *   another process of the run failed first; it has that one's code
└── StorageFailed         15   a file could not be written or read
    └── Damaged           15   a file is not what was written, or it is missing

Codes that are not of errors:

HARMED                    16   `hasten prove loss`: the planned run is worse than the margin allows
                               `hasten prove resume`: a run that was killed and resumed differs
NOT_PROVEN                17   `hasten prove loss`: inconclusive; or better, which is not equivalent either
                               `hasten prove resume`: two undisturbed runs differ, or a run ends before it is killed
INTERRUPTED              130   of any command, by Ctrl-C
TERMINATED               143   of any command, by SIGTERM, SIGHUP, SIGXCPU or SIGUSR1

An error says what happened, where, and what to do, in that order and in whole sentences.
"""

from __future__ import annotations

import unicodedata

_CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")  # terminals act on them: control codes, writing directions, surrogates
HARMED, NOT_PROVEN = 16, 17
INTERRUPTED, TERMINATED = 130, 143  # 128 + the signal's number, as a shell counts it


RAISED = (Exception, SystemExit)
"""What the job's code may raise that fails a run. If sys.exit() passed, a half-trained run could end with exit code 0
and no message."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, or another signal that asks a process to end, as a scheduler sends before it kills: a clean stop, as by
    Ctrl-C, with an exit code of its own. by: the signal's name."""

    def __init__(self, by: str = "SIGTERM") -> None:
        self.by = by
        super().__init__(by)


class HastenError(Exception):
    """What happened (`what`), the place (`where`, may be empty) and what to do (`fix`, may be empty)."""

    exit_code = 1

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f"\n  → {self.fix}" if self.fix else ""
        text = f"{place}{self.what}{remedy}"
        # It may quote an untrusted file, and Python prints it if nobody catches it.
        return "".join(each for each in text if each == "\n" or unicodedata.category(each) not in _CONTROLS)


class InvalidMeasurement(HastenError):
    pass


class NotMeasurable(InvalidMeasurement):
    exit_code = 75


class Misconfigured(HastenError):
    exit_code = 2


class JobError(Misconfigured):
    """A wrong field of a job: its name, what it was, and what to write instead."""

    def __init__(self, field: str, was: str, write: str) -> None:
        self.field = field
        super().__init__(was, where=f"Job.{field}" if field else "Job", fix=write)
        self.args = field, was, write  # by which another process rebuilds it


class NoJob(Misconfigured):
    pass


class PlanError(Misconfigured):
    pass


class Unavailable(Misconfigured):
    pass


class Unreadable(Misconfigured):
    pass


class UserCodeFailed(HastenError):
    """trace: the traceback from the user's first frame on, if the code ran in another process."""

    exit_code = 10
    trace = ""


class DataFailed(HastenError):
    exit_code = 11


class OutOfMemory(HastenError):
    exit_code = 12


class NonFinite(HastenError):
    exit_code = 13


class Hang(HastenError):
    exit_code = 14


class RankFailed(HastenError):
    """Another rank failed, which ends this one."""

    def __init__(self, what: str, where: str, code: int) -> None:
        self.exit_code = code
        super().__init__(what, where=where)
        self.args = what, where, code


class StorageFailed(HastenError):
    exit_code = 15


class Damaged(StorageFailed):
    pass
