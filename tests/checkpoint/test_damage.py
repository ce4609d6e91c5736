"""Bytes that change on the disk after they were written are found, told, and never used."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from hasten.checkpoint import manifest as manifests
from hasten.checkpoint.manifest import STATE, TENSORS
from hasten.checkpoint.store import Checkpoint, Store
from hasten.errors import StorageFailed
from support.checkpoint import stores

STEPS = (10, 20, 30)


def flipped(path: Path, chance: random.Random) -> None:
    """One byte is another."""
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
    path.write_bytes(content)


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def grown(path: Path, chance: random.Random) -> None:
    with open(path, "ab") as file:
        file.write(chance.randbytes(chance.randrange(1, 9)))


def emptied_in_the_middle(path: Path, chance: random.Random) -> None:
    """A page that never reached the disk reads as zeros."""
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    end = start + chance.randrange(1, 9)
    if any(content[start:end]):
        content[start:end] = bytes(len(content[start:end]))
    else:
        content[start] = 1
    path.write_bytes(content)


def missing(path: Path, chance: random.Random) -> None:
    path.unlink()


def a_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def the_file_of_another(path: Path, chance: random.Random) -> None:
    """As a copy gone wrong leaves it: every file is one that was once written."""
    others = [each for each in path.parent.parent.glob(f"*/{path.name}") if each.parent != path.parent]
    whole = sorted(each for each in others if each.is_file())
    if whole:
        path.write_bytes(chance.choice(whole).read_bytes())


DAMAGES = (
    flipped,
    flipped,
    flipped,
    flipped,
    cut,
    grown,
    emptied_in_the_middle,
    missing,
    a_folder,
    the_file_of_another,
)


def damage_some(folder: Path, chance: random.Random) -> set[str]:
    """Damage one to three of the checkpoints; their names."""
    store = Store(folder)
    damaged = chance.sample(store.found(), chance.choice((1, 1, 2, 2, 3)))
    originals = {each.path: dict(stores.files_below(each.path)) for each in damaged}
    for each in damaged:
        while stores.files_below(each.path) == originals[each.path]:  # another's file may be the same
            chance.choice(DAMAGES)(
                chance.choice(sorted(path for path in each.path.iterdir() if path.is_file())), chance
            )
    return {each.path.name for each in damaged}


def check(folder: Path, damaged: set[str]) -> None:
    store, told = Store(folder), list[tuple[Checkpoint, StorageFailed]]()
    loaded = store.newest(lambda *each: told.append(each))
    whole = [step for step in STEPS if f"step-{step}" not in damaged]
    if whole:
        assert loaded is not None
        assert stores.is_right(loaded)
    assert (loaded.checkpoint.step if loaded else None) == max(whole, default=None)
    expected = [f"step-{step}" for step in reversed(STEPS) if step > max(whole, default=0)]
    assert [checkpoint.path.name for checkpoint, _ in told] == expected
    for each in store.found():
        if each.path.name in damaged:
            for looked_at in (each.verify, each.read):
                with pytest.raises(StorageFailed) as caught:
                    looked_at()
                assert any(name in f"{caught.value}" for name in (manifests.NAME, STATE, TENSORS))
        else:
            each.verify()


@pytest.mark.parametrize("times", [25, pytest.param(500, marks=pytest.mark.proof)])
@pytest.mark.fault("corrupt or truncated checkpoint")
def test_every_damage_is_found_and_told_by_name_and_the_newest_whole_checkpoint_is_taken(in_memory, times):
    stores.filled(in_memory / "store", *STEPS)
    for seed in range(times):
        folder = in_memory / str(seed)
        shutil.copytree(in_memory / "store", folder)
        chance = random.Random(seed)
        damaged = damage_some(folder, chance)
        try:
            check(folder, damaged)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {sorted(damaged)}") from error
        shutil.rmtree(folder)
