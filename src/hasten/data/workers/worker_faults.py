"""The error for a loader worker that ended or hangs: the cause as far as evidence shows it, and what to do.

A worker that was killed without a message was most often killed for memory. Only the kernel knows, and it counts such
kills: the count before the workers started and the present one are the evidence. Without evidence nothing is claimed.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from hasten.data.loading.loader_options import is_ample
from hasten.data.workers.process_stacks import Answer, reading_frames
from hasten.errors import DataFailed, Hang, HastenError, OutOfMemory
from hasten.facts.formatting import byte_size
from hasten.facts.machine import SHARED_MEMORY
from hasten.users_code import is_users_file

_STATES = {
    psutil.STATUS_STOPPED: "is stopped (by SIGSTOP, or by a debugger) and cannot say where",
    psutil.STATUS_DISK_SLEEP: "waits in the kernel, as for a disk or a network share that does not answer",
    psutil.STATUS_ZOMBIE: "has ended",
    "gone": "has ended",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """One of the workers that read `what`, when it was last looked at."""

    what: str  # "Job.train"
    number: int
    workers: int
    ahead: int
    pid: int
    memory_bytes: int | None  # resident; None where it was never looked at
    answered: int  # batches that all of them have given in this epoch
    forked: bool

    def __str__(self) -> str:
        return f"loader worker {self.number} of {self.workers} (pid {self.pid})"

    @property
    def less(self) -> str:
        """Settings that need less memory."""
        fewer = f"fewer loader workers than {self.workers}" if self.workers > 1 else "no loader worker"
        return f"{fewer}, a prefetch below {self.ahead}" if self.ahead > 1 else fewer

    @property
    def held(self) -> str:
        size = self.memory_bytes
        return "" if size is None else f", holding {byte_size(size)} when last looked at"


def ended(
    worker: Worker,
    exit_code: int | None,
    killed_before: int | None,
    killed_now: int | None,
    free_shared_bytes: int | None = None,
) -> HastenError:
    """The error for a worker that ended while batches were due. exit_code: below 0 the number of a signal; None where
    it is not known. killed_before, killed_now: processes that the kernel killed for memory; None where it does not
    count them. free_shared_bytes: of /dev/shm, after it ended; None where there is none."""
    where = worker.what
    if exit_code is None:
        return DataFailed(f"{worker} ended{worker.held}", where=where, fix="check what it printed")
    if exit_code >= 0:
        fix = "look for exit() or os._exit() in what the data set calls"
        if not worker.forked and worker.answered == 0:
            fix = 'check what it printed; a script that starts workers needs `if __name__ == "__main__":`'
        return DataFailed(f"{worker} ended by itself with exit code {exit_code}", where=where, fix=fix)
    name = signal.Signals(-exit_code).name if -exit_code in {*signal.Signals} else f"signal {-exit_code}"
    what = f"{worker} was killed by {name}{worker.held}"
    if -exit_code == signal.SIGBUS:
        return _bus_error(what, worker, free_shared_bytes)
    if -exit_code != signal.SIGKILL:
        fix = "read the samples without workers, under python -X faulthandler, to see which library crashes"
        return DataFailed(what, where=where, fix=fix)
    if killed_before is None or killed_now is None:
        what += "; this system does not say whether it was for memory"
    elif killed_now > killed_before:
        what += f"; the kernel has killed {killed_now - killed_before} process(es) for memory since the workers started"
        return OutOfMemory(what, where=where, fix=f"use {worker.less}, smaller samples, or more memory")
    else:
        what += "; the kernel has killed no process for memory since the workers started"
    return DataFailed(what, where=where, fix=f"find out who killed it; if it was for memory, use {worker.less}")


def _bus_error(what: str, worker: Worker, free_shared_bytes: int | None) -> HastenError:
    """Mapped memory could not be reached, and the signal does not say of which file."""
    room = "" if free_shared_bytes is None else f" ({byte_size(free_shared_bytes)} are free there now)"
    what += f": either {SHARED_MEMORY}, through which it sends, is full{room}, or a file that the data set maps into "
    what += "memory (a cache, an index, numpy.memmap) was truncated, or lies on a disk that is full or gone"
    fix = f"watch `df {SHARED_MEMORY}` while it trains: if it fills up, make it larger (docker: --shm-size), or use "
    fix += f"{worker.less}; if it does not, check the disk of the mapped files (df, dmesg), and rebuild truncated ones"
    kind = DataFailed if is_ample(free_shared_bytes, worker.workers, worker.ahead) else OutOfMemory
    return kind(what, where=worker.what, fix=fix)


_IN_USERS_CODE, _BUSY, _SILENT, _IDLE = range(4)  # how much a worker has to do with a hang: lower is more


def hung(waited_seconds: float, answers: Sequence[tuple[Worker, Answer]]) -> Hang:
    """The error for workers that do not answer: those inside the user's code first, then all other busy ones."""
    accounts = sorted((_account(*each) for each in answers), key=lambda account: account[0])
    worker = answers[0][0]
    lines = [f"no batch came for {waited_seconds:.0f} s; the {worker.workers} loader workers were asked and ended"]
    lines += [text for _, text, _ in accounts]
    line = accounts[0][2]
    fix = f"check this line: {line}" if line else "check what it waits for"
    return Hang("\n".join(lines), where=worker.what, fix=fix)


def _account(worker: Worker, answer: Answer) -> tuple[int, str, str]:
    """Its rank, what is said of it, and the innermost line of the user's code that it is in."""
    state, frames = _STATES.get(answer.state), reading_frames(answer.stacks)
    if frames is not None:
        users_line = next((str(frame) for frame in frames if is_users_file(frame.file)), "")
        text = "\n".join([f"{worker} is at:", *(f"    {frame}" for frame in frames)])
        return _IN_USERS_CODE if users_line else _BUSY, text, users_line
    if answer.stacks:
        return _IDLE, f"{worker} has nothing to do", ""
    return _SILENT, f"{worker} {state or 'says nothing: it may not have begun'}", ""
