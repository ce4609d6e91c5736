"""Which of a run's checkpoints are retained: the others are removed once a newer one is known to be whole."""

from __future__ import annotations

from collections.abc import Mapping

from hasten.checkpoint.manifest import Manifest
from hasten.checkpoint.store import Checkpoint, Store
from hasten.errors import Damaged, StorageFailed
from hasten.facts.saving import Saving


def retained(newest_first: Mapping[Checkpoint, Manifest], saving: Saving) -> set[Checkpoint]:
    """The newest ones, the newest that was the best so far, and those at multiples of `keep_every` steps."""
    stay = {*[*newest_first][: saving.keep_last]}
    if saving.keep_best:
        stay |= {*[each for each, manifest in newest_first.items() if manifest.best][:1]}
    if saving.keep_every is not None:
        stay |= {each for each in newest_first if each.step % saving.keep_every == 0}
    return stay


def remove_old(store: Store, saving: Saving, newest: Checkpoint, damaged: set[Checkpoint]) -> None:
    """Remove what `saving` does not retain. What cannot be read may be whole, and stays.

    newest: a whole one, which stays.
    damaged: known to be; they are removed and do not count among those to retain. Those that are found are added, those
        that are removed are taken out.
    Raises StorageFailed for the first one that cannot be removed, or read, after all others were removed.
    """
    known, failures = dict[Checkpoint, Manifest](), list[StorageFailed]()
    for each in store.found():
        if each in damaged:
            continue
        try:
            known[each] = each.manifest()
        except Damaged:
            damaged.add(each)
        except StorageFailed as error:
            failures.append(StorageFailed(error.what, where=str(each.path), fix=error.fix))
    stay = retained(known, saving) | {newest}
    for each in [*(each for each in known if each not in stay), *damaged]:
        try:
            if each.path.is_symlink() or each.path.exists():
                store.remove(each)
            damaged.discard(each)  # its name is free for another one
        except StorageFailed as error:
            failures.append(error)
    if failures:
        raise failures[0]
