"""Which of a run's checkpoints are retained: the others are removed once a newer one is known to be whole."""

from __future__ import annotations

from hasten.checkpoint.manifest import Manifest
from hasten.checkpoint.store import Checkpoint, Store
from hasten.errors import Damaged, StorageFailed
from hasten.facts.saving import Saving, retained


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
    stay = {id(each) for each in retained(known.values(), saving)}
    old = [each for each, manifest in known.items() if id(manifest) not in stay and each != newest]
    for each in [*old, *damaged]:
        try:
            if each.path.is_symlink() or each.path.exists():
                store.remove(each)
            damaged.discard(each)  # its name is free for another one
        except StorageFailed as error:
            failures.append(error)
    if failures:
        raise failures[0]
