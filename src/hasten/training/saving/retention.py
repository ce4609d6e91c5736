"""Which of a run's checkpoints stay: what need not is removed, once a newer one is known to be whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hasten.checkpoint.store import Checkpoint, Store
from hasten.errors import Damaged, StorageFailed
from hasten.facts.saving import Saving, kept


class Room:
    """damaged: checkpoints that were found broken, which go, and take the place of no whole one."""

    def __init__(self, store: Store, saving: Saving, damaged: Sequence[Checkpoint]) -> None:
        self._store, self._saving, self.damaged = store, saving, {*damaged}

    def make(self, newest: Checkpoint) -> None:
        """newest: a whole one, which stays. What cannot be read may be whole, and stays too.

        Raises StorageFailed, for the first one that cannot be removed, or read, when all others are.
        """
        known, failures = list[_Known](), list[StorageFailed]()
        for each in self._store.found():
            if each in self.damaged:
                continue
            try:
                known.append(_Known(each, each.manifest().best))
            except Damaged:
                self.damaged.add(each)
            except StorageFailed as error:
                failures.append(StorageFailed(error.what, where=str(each.path), fix=error.fix))
        stay = {each.checkpoint for each in kept(known, self._saving)} | {newest}
        for each in [*(each.checkpoint for each in known if each.checkpoint not in stay), *self.damaged]:
            try:
                self._remove(each)
            except StorageFailed as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _remove(self, checkpoint: Checkpoint) -> None:
        if checkpoint.path.is_symlink() or checkpoint.path.exists():
            self._store.remove(checkpoint)
        self.damaged.discard(checkpoint)  # its name is free for another one


@dataclass(frozen=True, slots=True)
class _Known:
    checkpoint: Checkpoint
    best: bool

    @property
    def step(self) -> int:
        return self.checkpoint.step
