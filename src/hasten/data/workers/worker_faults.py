"""What is said of a loader worker that ended or hangs: the cause as far as anything proves it, and what to do.

A worker that was killed without a word was most often killed for memory. But only the kernel knows, and it counts what
it kills: the count before the workers started and the one now are the evidence. Without evidence nothing is claimed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from hasten.data.loading.data_errors import is_theirs
from hasten.data.loading.limits import is_ample
from hasten.errors import DataFailed, Hang, HastenError, OutOfMemory
from hasten.facts.formatting import byte_size
from hasten.facts.machine import SHARED_MEMORY

_THREAD = re.compile(r"^(?:Current thread|Thread) .*\n((?:  .*\n?)*)", re.MULTILINE)
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_OUR_READING = ("batch_readers.py", "__getitems__")  # below this frame stands what reads a sample

_STATES = {
    psutil.STATUS_STOPPED: "is stopped (by SIGSTOP, or by a debugger) and cannot say where",
    psutil.STATUS_TRACING_STOP: "is stopped by a debugger and cannot say where",
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
        """What would need less memory."""
        fewer = f"fewer loader workers than {self.workers}" if self.workers > 1 else "no loader worker"
        return f"{fewer}, a prefetch below {self.ahead}" if self.ahead > 1 else fewer


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Where a worker stands: its state by the kernel, in psutil's words, and its own stacks by faulthandler."""

    state: str
    stacks: str


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def ended(
    worker: Worker,
    exit_code: int | None,
    killed_before: int | None,
    killed_now: int | None,
    free_shared_bytes: int | None = None,
) -> HastenError:
    """The error for a worker that ended while batches were due.

    exit_code: below 0 the number of a signal; None where nobody saw it.
    killed_before, killed_now: what the kernel counts of processes killed for memory; None where it does not.
    free_shared_bytes: of /dev/shm, after it ended; None where there is none.
    """
    where = worker.what
    if exit_code is None:
        return DataFailed(f"{worker} ended{_held(worker)}", where=where, fix="look at what it printed")
    if exit_code >= 0:
        fix = "look for exit() or os._exit() in what the data set calls"
        if not worker.forked and worker.answered == 0:
            fix = 'look at what it printed; a script that starts workers needs `if __name__ == "__main__":`'
        return DataFailed(f"{worker} ended by itself with exit code {exit_code}", where=where, fix=fix)
    name = _signal_name(-exit_code)
    what = f"{worker} was killed by {name}{_held(worker)}"
    if -exit_code == signal.SIGBUS:
        return _bus_error(what, worker, free_shared_bytes)
    if -exit_code != signal.SIGKILL:
        fix = "read the samples without workers, under python -X faulthandler, to see which library crashes"
        return DataFailed(what, where=where, fix=fix)
    if killed_before is not None and killed_now is not None and killed_now > killed_before:
        what += f"; the kernel has killed {killed_now - killed_before} process(es) for memory since the workers started"
        return OutOfMemory(what, where=where, fix=f"use {worker.less}, smaller samples, or more memory")
    what += "; the kernel counts nothing that it killed for memory since the workers started"
    if killed_before is None:
        what = f"{what.partition(';')[0]}; this system does not tell whether it was for memory"
    return DataFailed(what, where=where, fix=f"find out who killed it; where it was for memory, use {worker.less}")


def _bus_error(what: str, worker: Worker, free_shared_bytes: int | None) -> HastenError:
    """Memory that stands for a file could not be reached, and the signal does not tell which file."""
    room = "" if free_shared_bytes is None else f" ({byte_size(free_shared_bytes)} are free there now)"
    what += (
        f": either {SHARED_MEMORY}, through which it sends, is full{room}, or a file that the data set maps into "
        "memory (a cache, an index, numpy.memmap) was cut short, or lies on a disk that is full or went away"
    )
    fix = (
        f"watch `df {SHARED_MEMORY}` while it trains: where it fills up, make it larger (docker: --shm-size), or use "
        f"{worker.less}; where it does not, look at the disk of the mapped files (df, dmesg), and make cut ones anew"
    )
    kind = DataFailed if is_ample(free_shared_bytes, worker.workers, worker.ahead) else OutOfMemory
    return kind(what, where=worker.what, fix=fix)


def hung(waited_seconds: float, answers: Sequence[tuple[Worker, Answer]]) -> Hang:
    """The error for workers that do not answer: those that stand in the user's code first, then all other busy ones."""
    accounts = sorted((_Account(worker, answer) for worker, answer in answers), key=lambda account: account.rank)
    worker = answers[0][0]
    busy = [account for account in accounts if account.rank < _IDLE]
    what = f"no batch came for {waited_seconds:.0f} s; the {worker.workers} loader workers were asked and ended"
    lines = [what, *(line for account in accounts for line in account.lines())]
    theirs = next((frame for account in busy for frame in account.frames if is_theirs(frame.file)), None)
    fix = f"look at this line: {theirs}" if theirs else "look at what it waits for"
    if not busy:
        fix = "look above for the traceback of a batch that could not be sent; its parts must be picklable"
    return Hang("\n".join(lines), where=worker.what, fix=fix)


_IN_THEIR_CODE, _BUSY, _SILENT, _IDLE = range(4)


class _Account:
    """What one worker said, and how much it has to do with the hang."""

    def __init__(self, worker: Worker, answer: Answer) -> None:
        self.worker, self.answer = worker, answer
        reading = reading_frames(answer.stacks)
        self.frames = reading or []
        if any(is_theirs(frame.file) for frame in self.frames):
            self.rank = _IN_THEIR_CODE
        elif reading is not None:
            self.rank = _BUSY
        else:
            self.rank = _IDLE if answer.stacks else _SILENT

    def lines(self) -> list[str]:
        if self.rank == _IDLE:
            return [f"{self.worker} has nothing to do"]
        if self.rank == _SILENT:
            return [f"{self.worker} {_STATES.get(self.answer.state, 'says nothing: it may not have begun')}"]
        state = _STATES.get(self.answer.state)
        return [f"{self.worker} " + (f"{state}:" if state else "stands in:"), *(f"    {one}" for one in self.frames)]


def reading_frames(stacks: str) -> list[Frame] | None:
    """From faulthandler's text, the frames of the thread that reads a batch, innermost first, without those around the
    reading; None when no thread reads."""
    for frames in threads_of(stacks):
        for depth, frame in enumerate(frames):
            if (frame.file.replace("\\", "/").rpartition("/")[2], frame.function) == _OUR_READING:
                return frames[:depth] or [frame]
    return None


def threads_of(stacks: str) -> Iterator[list[Frame]]:
    """From faulthandler's text, the frames of each thread that has any, innermost first; the main thread comes last."""
    for thread in _THREAD.finditer(stacks):
        if frames := [Frame(file, int(line), function) for file, line, function in _FRAME.findall(thread[1])]:
            yield frames


def _held(worker: Worker) -> str:
    if worker.memory_bytes is None:
        return ""
    return f", holding {byte_size(worker.memory_bytes)} when last looked at"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
