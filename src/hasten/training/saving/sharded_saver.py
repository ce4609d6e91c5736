"""What stands in a Saver's place on a rank that does not lead but holds parts: it writes these, behind its training's
back, into the checkpoints that the leader makes."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from hasten.checkpoint.digests import most_threads
from hasten.checkpoint.sharded.collective_save import follow
from hasten.checkpoint.sharded.slabs import Holding, holding
from hasten.checkpoint.state_tree import flattened_in_parts
from hasten.parallel.launch.text_exchange import Exchange
from hasten.training.saving.host_snapshot import Snapshots, on_host
from hasten.training.saving.no_saver import NoSaver

if TYPE_CHECKING:
    from hasten.training.saving.saver import State


class PartSaver(NoSaver):
    """When to save, and what became of it, is the leader's to say. What ends this rank's talk with it is raised by
    whatever is called next."""

    def __init__(self, exchange: Exchange, *, shares_processor: bool) -> None:
        """shares_processor: whether the training computes on the processors that the thread works on."""
        self._exchange, self._shares = exchange, shares_processor
        self._snapshots, self._thread = Snapshots(), ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    @property
    def has_news(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._writing is not None and self._writing.done()

    def save(self, state: State) -> None:
        """Raises Misconfigured for a state that no file can hold."""
        self._begin(state, 1 if self._shares else most_threads())

    def save_now(self, state: State) -> None:
        self._begin(state, most_threads())
        self.settle()

    def poll(self) -> None:
        if self.has_news:
            self.settle()

    def settle(self) -> None:
        """Wait until what this rank has to write is written, or could not be."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown()

    def _begin(self, state: State, threads: int) -> None:
        self.settle()
        _, _, in_parts = flattened_in_parts(dict(state.trees))
        held = holding(in_parts)
        copies = self._snapshots.of(held.slabs)
        aside = copies is not None
        kept = Holding(tensors=held.tensors, slabs=copies or on_host(held.slabs), keys=held.keys)
        rank = self._exchange.ranks.rank
        self._writing = self._thread.submit(follow, self._exchange, rank, state.step, kept, threads)
        if not aside:  # the tensors are the run's own: it must not go on before they are written
            self._writing.exception()
