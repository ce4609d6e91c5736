"""The saver of a rank that does not lead: it writes the parts that it holds into the leader's checkpoints.

Where every rank holds the whole state, the leader saves it alone, and the others save nothing.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from hasten.checkpoint.digests import most_threads
from hasten.checkpoint.sharded.collective_save import follow
from hasten.errors import StorageFailed
from hasten.parallel.launch.rank_messages import Exchange
from hasten.training.saving.host_snapshot import Snapshots
from hasten.training.saving.saver import State, on_host


class FollowerSaver:
    """The leader decides when to save, and reports the result. An error of the exchange is raised by the next call."""

    last_failed = False
    save_seconds = 0.0

    def __init__(self, exchange: Exchange | None, *, shares_processor: bool) -> None:
        """exchange: with the leader; None where this rank holds no parts.
        shares_processor: whether training computes on the processors that the thread works on."""
        self._exchange, self._shares = exchange, shares_processor
        self._snapshots, self._thread = Snapshots(), ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def due(self, step: int) -> bool:
        """Whether to request a save after this step."""
        return False

    def worth_saving_best(self) -> bool:
        return False

    def refused(self, step: int, error: StorageFailed) -> None:
        """The leader counts it."""

    def save(self, state: State) -> None:
        """Raises Misconfigured for a state that no file can hold."""
        self._begin(state, 1 if self._shares else most_threads())

    def save_now(self, state: State) -> None:
        self._begin(state, most_threads())
        self.settle()

    def poll(self) -> None:
        if self._writing is not None and self._writing.done():
            self.settle()

    def settle(self) -> None:
        """Wait until this rank's parts are written, or could not be."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown()

    def _begin(self, state: State, threads: int) -> None:
        if self._exchange is None:
            return
        self.settle()
        _, _, held, is_copy = on_host(state, self._snapshots)
        rank = self._exchange.ranks.rank
        self._writing = self._thread.submit(follow, self._exchange, rank, state.step, held, threads)
        if not is_copy:  # training would change the tensors that are being written
            self._writing.exception()
