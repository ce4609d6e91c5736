"""A checkpoint that two ranks save: whole, or not at all, whatever happens to either of them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from hasten.checkpoint import manifest as manifests
from hasten.checkpoint.digests import Digest
from hasten.checkpoint.manifest import PIECES
from hasten.checkpoint.sharded import rank_files
from hasten.checkpoint.sharded.collective_save import follow
from hasten.checkpoint.sharded.tensor_slabs import Holding
from hasten.checkpoint.store import Store
from hasten.errors import StorageFailed
from support.checkpoint import file_faults, forger, part_stores, stores
from support.checkpoint.disk_states import Began, Saved, outcomes
from support.checkpoint.file_faults import Operation

NOTHING = Holding(tensors={}, slabs={}, keys={})
FILES = ["manifest.json", "parts-0000.safetensors", "parts-0001.safetensors", "pieces.json", "state.json"]


@pytest.fixture
def store(in_memory):
    return part_stores.filled(in_memory / "store", 1, 2)


def test_each_rank_writes_what_it_holds_and_what_all_have_is_found(store):
    checkpoint = store.found()[0]
    assert stores.names(Store(checkpoint.path)) == [*FILES, "tensors.safetensors"]
    assert part_stores.step_found(store) == 2
    found = checkpoint.verify()
    assert sorted(found.files) == [*FILES[1:], "tensors.safetensors"]
    assert found.world_size == 2
    assert found.bytes == sum(path.stat().st_size for path in checkpoint.path.iterdir() if path.name != manifests.NAME)


def refused_in_each(store: Store, code: int, last: int | None, whose: str = "") -> Iterator[StorageFailed]:
    """What a save of both ranks says for each operation, on files with this in their path, that the disk refuses."""

    def watch(note: file_faults.Noted) -> AbstractContextManager[None]:
        return file_faults.watched(lambda operation: note(operation) if whose in operation.path else None)

    number, told = 0, None
    while number == 0 or told is not None:
        number, told = number + 1, None
        with file_faults.failing(range(number, last or number + 1), code, watch) as refused:
            try:
                part_stores.save(store, 3)
            except StorageFailed as error:
                told = error
        assert bool(refused) is (told is not None), f"refused: {refused}, told: {told}"
        if told is not None:
            yield told


@pytest.mark.parametrize(
    ("last", "whose", "least"),
    [(None, "parts-0001", 3), pytest.param(sys.maxsize, "", 20, marks=pytest.mark.proof)],
    ids=["the second, once", "either, from then on"],
)
@pytest.mark.fault("disk full, EIO")
def test_what_the_disk_refuses_to_a_rank_fails_for_both_and_leaves_nothing(store, last, whose, least):
    before, number = stores.files_below(store.folder), 0
    for error in refused_in_each(store, errno.ENOSPC, last, whose):
        number += 1
        assert os.strerror(errno.ENOSPC) in error.what
        assert not whose or (error.what.startswith("rank 1: ") and whose in error.where)
        assert part_stores.step_found(store) in ((2, 3) if last and not whose else (2,))
        for late in store.found()[:-2]:
            store.remove(late)
        store.clean()
        assert stores.files_below(store.folder) == before
    assert number >= least
    assert part_stores.step_found(store) == 3


@pytest.mark.fault("killed during save, rotation or resume")
def test_a_rank_that_dies_while_it_saves_leaves_the_checkpoint_before_it(store):
    def dies(seat, step, own):
        seat.from_leader("")
        seat._table.leave()

    before = stores.files_below(store.folder)
    with pytest.raises(part_stores.Gone):
        part_stores.save(store, 3, dies)
    assert part_stores.step_found(store) == 2
    assert stores.files_below(store.folder) == before


@pytest.mark.proof
@pytest.mark.fault("killed during save, rotation or resume")
def test_killed_inside_any_operation_of_a_save_in_parts_an_older_or_the_new_one_is_found(in_memory):
    part_stores.filled(in_memory / "store", 1, 2)
    number, found = 0, list[int | None]()
    died = True
    while died:
        number += 1
        folder = in_memory / str(number)
        shutil.copytree(in_memory / "store", folder)
        died = file_faults.killed_inside(number, lambda folder=folder: part_stores.save(Store(folder), 3))
        found.append(part_stores.step_found(Store(folder)))
        Store(folder).clean()
        assert len(stores.names(Store(folder))) == (3 if found[-1] == 3 else 2)
        shutil.rmtree(folder)
    assert number > 20
    assert found == sorted(found, key=str)
    assert {*found} == {2, 3}


def test_a_rank_that_read_back_something_else_fails_the_save(store, monkeypatch):
    changed = Digest(7, "0" * 64)
    monkeypatch.setattr(rank_files, "digest_of", lambda path, most: changed)
    with pytest.raises(StorageFailed, match="what is read back differs from what was written"):
        part_stores.save(store, 3)
    assert part_stores.step_found(store) == 2
    assert stores.names(store) == ["step-1", "step-2"]


def test_a_rank_that_lacks_a_part_fails_the_save(store):
    def forgets(seat, step, own):
        follow(seat, 1, step, NOTHING, 1)

    with pytest.raises(StorageFailed, match="its pieces do not have as many elements as the tensor"):
        part_stores.save(store, 3, forgets)
    assert stores.names(store) == ["step-1", "step-2"]


def test_a_fault_of_ours_on_one_rank_ends_neither_in_silence(store, monkeypatch):
    def breaks(folder, rank, held, threads):
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("hasten.checkpoint.sharded.collective_save.write_part", breaks)
    with pytest.raises(StorageFailed, match="rank 1: ZeroDivisionError: of ours"):
        part_stores.save(store, 3)
    assert stores.names(store) == ["step-1", "step-2"]


# ---- damage


@pytest.mark.parametrize("name", FILES)
@pytest.mark.fault("corrupt or truncated checkpoint")
def test_a_changed_byte_in_any_file_is_found_and_an_older_checkpoint_is_used(store, name):
    path, chance = store.folder / "step-2" / name, random.Random(name)
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
    path.write_bytes(content)
    damaged = []
    assert part_stores.step_found(store, damaged) == 1
    assert [each.step for each in damaged] == [2]
    with pytest.raises(StorageFailed, match=name.replace(".", r"\.")):
        store.found()[0].verify()


def test_a_forged_table_is_refused(store):
    path = store.folder / "step-2"
    table = json.loads((path / PIECES).read_bytes())
    table["run/model/rows"]["pieces"][1]["offsets"] = [0]
    content = json.dumps(table).encode()
    (path / PIECES).write_bytes(content)
    manifest = json.loads((path / manifests.NAME).read_bytes())
    manifest["files"][PIECES] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / manifests.NAME).write_bytes(forger.with_seal(manifest))
    store.found()[0].verify()
    with pytest.raises(StorageFailed, match="two of its pieces overlap"):
        store.found()[0].read()


# ---- power cuts


def log_of(folder: Path) -> list[Operation | Began | Saved]:
    log: list[Operation | Began | Saved] = []
    store = Store(folder / "checkpoints")

    def noted(operation: Operation) -> None:
        log.append(Operation(operation.name, operation.path, operation.target, bytes(operation.data)))

    with file_faults.watched(noted):
        for step in (1, 2):
            log.append(Began(step))
            part_stores.save(store, step)
            log.append(Saved(step))
    return log


def found_whole(folder: Path) -> int | None:
    store = Store(folder / "checkpoints")
    store.clean()
    return part_stores.step_found(store)


@pytest.mark.proof
def test_in_every_state_after_a_power_cut_what_was_promised_or_its_successor_is_found(tmp_path, in_memory):
    seen = list(outcomes(log_of(tmp_path), tmp_path, found_whole, in_memory / "state"))
    assert [each for each in seen if each.wrong] == []
    assert len(seen) > 300
