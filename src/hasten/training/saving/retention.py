"""Which of a run's checkpoints are retained: the others are removed once a newer one is known to be whole."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.checkpoint.store import Checkpoint, Store
from hasten.errors import Damaged, StorageFailed
from hasten.facts.saving import Saving, retained


@dataclass(frozen=True, slots=True)
class _Known:
    checkpoint: Checkpoint
    best: bool

    @property
    def step(self) -> int:
        return self.checkpoint.step


def remove_old(store: Store, saving: Saving, newest: Checkpoint, damaged: set[Checkpoint]) -> None:
    """Remove what `saving` does not retain. What cannot be read may be whole, and stays.

    newest: a whole one, which stays.
    damaged: known to be; they are removed and do not count among those to retain. Those that are found are added, those
        that are removed are taken out.
    Raises StorageFailed for the first one that cannot be removed, or read, after all others were removed.
    """
    known, failures = list[_Known](), list[StorageFailed]()
    for each in store.found():
        if each in damaged:
            continue
        try:
            known.append(_Known(each, each.manifest().best))
        except Damaged:
            damaged.add(each)
        except StorageFailed as error:
            failures.append(StorageFailed(error.what, where=str(each.path), fix=error.fix))
    stay = {each.checkpoint for each in retained(known, saving)} | {newest}
    for each in [*(each.checkpoint for each in known if each.checkpoint not in stay), *damaged]:
        try:
            if each.path.is_symlink() or each.path.exists():
                store.remove(each)
            damaged.discard(each)  # its name is free for another one
        except StorageFailed as error:
            failures.append(error)
    if failures:
        raise failures[0]
