"""Checkpoints that threads of one process save together, each as a rank that holds a half of every tensor."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from typing import Any

import torch

from hasten.checkpoint.sharded.collective_save import follow, led
from hasten.checkpoint.sharded.rank_files import assembled
from hasten.checkpoint.sharded.tensor_slabs import Holding, InParts, Slab, holding
from hasten.checkpoint.state_tree import flattened
from hasten.checkpoint.store import Checkpoint, Contents, Loaded, Store

PATIENCE = 20.0  # seconds, after which a test has failed
LONG = 6


class Gone(Exception):
    """What is said to a rank that is waited for in vain."""


class Table:
    """At which two ranks sit, the first of them the leader."""

    def __init__(self) -> None:
        self.down, self.up = Queue[str | None](), Queue[str | None]()

    def leave(self) -> None:
        """The second rank is dead."""
        self.up.put(None)


class Seat:
    def __init__(self, table: Table, rank: int) -> None:
        self._table, self._rank = table, rank

    def from_leader(self, text: str) -> str:
        if self._rank == 0:
            self._table.down.put(text)
            return text
        return _heard(self._table.down)

    def to_leader(self, text: str) -> list[str]:
        if self._rank == 0:
            return [text, _heard(self._table.up)]
        self._table.up.put(text)
        return []


def _heard(queue: Queue[str | None]) -> str:
    said = queue.get(timeout=PATIENCE)
    if said is None:
        raise Gone
    return said


def state(step: int, rank: int) -> dict[str, Any]:
    """As a rank has it; its weights twice, as in a run."""
    rows = torch.arange(float(LONG)) * step
    half = Slab((rank * LONG // 2,), rows[rank * LONG // 2 :][: LONG // 2])
    mark = InParts((LONG,), rows.dtype, (half,))
    return {"run": {"model": {"rows": mark}, "scale": torch.tensor([step])}, "weights": {"rows": mark}}


def held(step: int, rank: int) -> tuple[Any, Any, Holding]:
    tree, tensors, parts = flattened(state(step, rank))
    return tree, tensors, holding(parts)


Second = Callable[[Seat, int, Holding], None]


def follows(seat: Seat, step: int, own: Holding) -> None:
    follow(seat, 1, step, own, 1)


def save(store: Store, step: int, second: Second = follows) -> Checkpoint:
    """By two ranks; second: what the one does that does not lead. Both have ended when this returns or raises."""
    table = Table()
    tree, tensors, own = held(step, 0)
    contents = Contents(step=step, epoch=0, reason="a test", best=False, world_size=2, trees=tree, tensors=tensors)
    with ThreadPoolExecutor(1) as beside:
        other: Future[None] = beside.submit(second, Seat(table, 1), step, held(step, 1)[2])
        try:
            with led(Seat(table, 0)) as saving:
                return store.save_led(contents, own, saving)
        finally:
            other.exception(timeout=PATIENCE)


def is_right(loaded: Loaded) -> bool:
    step, states = loaded.checkpoint.step, loaded.states
    rows = [assembled(each["rows"]) for each in (states["weights"], states["run"]["model"])]
    same = all(torch.equal(each, torch.arange(float(LONG)) * step) for each in rows)
    return same and states["run"]["scale"].tolist() == [step]


def step_found(store: Store, damaged: list[Checkpoint] | None = None) -> int | None:
    """As stores.step_found."""

    def tell(checkpoint: Checkpoint, error: Exception) -> None:
        assert damaged is not None, f"{checkpoint.path.name}: {error}"
        damaged.append(checkpoint)

    loaded = store.newest(tell)
    assert loaded is None or is_right(loaded), f"{loaded.checkpoint.path.name} holds something else"
    return None if loaded is None else loaded.checkpoint.step


def filled(folder: Any, *steps: int) -> Store:
    store = Store(folder)
    for step in steps:
        save(store, step)
    return store
