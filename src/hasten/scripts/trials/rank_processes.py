"""The ranks of a trial whose script trains in several processes: rank 0, and those that are forked from it before the
script starts, in the same copy of the user's folder.

All run the script, and take the same steps. Where rank 0 stands between two steps, the others stand at the same place:
what they would queue on their GPUs meanwhile, and wait for there, would take those from the trial that is measured.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from typing import Any

from hasten.errors import InvalidMeasurement, Misconfigured
from hasten.facts.machine import killed_for_memory
from hasten.facts.ranks import environment_of, launched
from hasten.tuning.trials.child_process import Messages
from hasten.tuning.trials.process_tree import die_with, ended_for_memory, how_it_ended
from hasten.tuning.trials.trial_outcome import Outcome, SentError

REPORT_SECONDS = 1.0  # until the end of a rank that was killed is known


@dataclass(kw_only=True)
class Followers:
    """On rank 0, the others; there are none where the script is one process."""

    channels: Sequence[Messages] = ()
    watchers: Sequence[threading.Thread] = ()
    rank: int = 0
    _allowed: int = 0  # steps that they may take and rank 0 has not taken yet
    _stores: Sequence[Any] = field(default=(), repr=False)  # of the script's process group, and of its next one

    def start(self) -> None:
        """The script starts now, on all ranks, for the first time or again."""
        if self.channels:
            from hasten.parallel.launch.loopback import store_on_loopback

            if not self._stores or self._stores[-1].num_keys():  # torch gives the keys of another group the same names
                self._stores = [*self._stores[-1:], store_on_loopback()]
            port = self._stores[-1].port
            os.environ.update(environment_of(0, len(self.channels) + 1, port))
            self._tell({"port": port})

    def wait_for_end(self) -> None:
        """Until the script has ended on all ranks. Raises InvalidMeasurement where one is gone."""
        self._tell({"ended": True})
        if not all(each.wait() for each in self.channels):
            raise InvalidMeasurement("another rank has ended before the script was started again")

    def allow(self, steps: int) -> None:
        """They need not wait in so many steps."""
        self._allowed += steps
        self._tell({"steps": steps})

    def step(self) -> None:
        """All ranks take one more."""
        if not self._allowed:
            self.allow(1)
        self._allowed -= 1

    def end_epoch(self) -> None:
        """As StepClock.end_epoch, in the step that they take next."""
        self._tell({"ends_epoch": True})

    def _tell(self, order: Mapping[str, Any]) -> None:
        for each in self.channels:
            each.send(order)

    @contextmanager
    def reporting_first(self) -> Iterator[None]:
        """Where a rank was killed and rank 0 fails for that, the first is reported, and the process ends."""
        try:
            yield
        except BaseException:
            until = time.monotonic() + REPORT_SECONDS
            for each in self.watchers:
                each.join(max(0.0, until - time.monotonic()))
            raise


@dataclass(kw_only=True)
class Follower:
    """On another rank than 0. orders: of rank 0."""

    rank: int
    size: int
    orders: Messages
    _allowed: int = 0

    def start(self) -> None:
        os.environ.update(environment_of(self.rank, self.size, int(self._order("port"))))

    def wait_for_end(self) -> None:
        self.orders.send({"ended": self._order("ended")})

    def step(self, settle: Callable[[], None], end_epoch: Callable[[], None]) -> None:
        """Returns when rank 0 takes its next step."""
        if not self._allowed:
            settle()
        while not self._allowed:
            self._allowed = int(self._order("steps", end_epoch))
        self._allowed -= 1

    def _order(self, name: str, end_epoch: Callable[[], None] = lambda: None) -> Any:
        order = self.orders.wait()
        if order is None:
            os._exit(0)
        if "ends_epoch" in order:
            end_epoch()
            return 0
        if name not in order:
            what = "has taken another number of optimizer steps than rank 0"
            raise Misconfigured(what, fix="give every rank equally many batches")
        return order[name]

    @contextmanager
    def reporting_first(self) -> Iterator[None]:
        yield


def started_ranks(messages: Messages) -> Followers | Follower:
    """Forks the ranks that a launcher has set, of which this process is number 0: it returns in each of them. messages:
    of the trial, by which each of them reports its failure."""
    size, killed_before = launched().all.size, killed_for_memory()
    channels, watchers = list[Messages](), list[threading.Thread]()
    for rank in range(1, size):
        ours, theirs = Pipe()
        parent, pid = os.getpid(), os.fork()
        if not pid:
            die_with(parent)
            os.environ["RANK"] = str(rank)
            return Follower(rank=rank, size=size, orders=Messages(theirs))
        theirs.close()
        channels.append(Messages(ours))
        arguments = (pid, rank, killed_before, messages)
        watchers.append(threading.Thread(target=_report_its_end, args=arguments, daemon=True))
    for each in watchers:  # when no more are forked
        each.start()
    return Followers(channels=channels, watchers=watchers)


def _report_its_end(pid: int, rank: int, killed_before: int | None, messages: Messages) -> None:
    """One that fails reports that itself, and ends by exit code 0."""
    _, status = os.waitpid(pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        outcome = Outcome.OUT_OF_MEMORY if ended_for_memory(code, killed_before) else Outcome.CRASHED
        what = f"rank {rank} {how_it_ended(code)}"
        messages.send({"failed": outcome.value, "message": what, "error": asdict(SentError(kind="", what=what))})
        os._exit(0)
