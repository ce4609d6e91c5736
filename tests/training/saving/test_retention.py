"""Which checkpoints stay when a newer one is whole: never fewer whole ones than asked for, and nothing unread goes."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten import Saving
from hasten.checkpoint import manifest as manifests
from hasten.checkpoint.manifest import TENSORS
from hasten.checkpoint.saved_checkpoint import Checkpoint
from hasten.checkpoint.store import Store
from hasten.errors import StorageFailed
from hasten.facts.events import Event, Noticed, Saved
from hasten.training.run_folder.folder_checks import make_new
from hasten.training.run_folder.run_directory import RunFolder
from hasten.training.saving.retention import remove_old, retained
from hasten.training.saving.saver import Saver, State
from support.checkpoint import file_faults, stores


@st.composite
def folders(draw: st.DrawFn) -> dict[Checkpoint, Any]:
    """What is found, the newest first; a step may have been saved again."""
    steps = sorted(draw(st.lists(st.integers(0, 30), max_size=12)), reverse=True)
    about = [SimpleNamespace(best=draw(st.booleans())) for _ in steps]
    found = [Checkpoint(Path(f"{step}.{number}"), step, number) for number, step in enumerate(steps)]
    return dict(zip(found, about, strict=True))


savings = st.builds(
    Saving,
    keep_last=st.integers(2, 5),
    keep_best=st.booleans(),
    keep_every=st.none() | st.integers(1, 10),
)


@given(folders(), savings)
def test_what_stays_are_the_newest_the_newest_best_and_those_at_multiples_and_no_other(found, saving):
    stay = retained(found, saving)
    best = [each for each, about in found.items() if about.best][:1]
    for number, each in enumerate(found):
        due = saving.keep_every is not None and each.step % saving.keep_every == 0
        assert (each in stay) == (number < saving.keep_last or due or (saving.keep_best and each in best))


@pytest.fixture
def store(tmp_path):
    return stores.filled(tmp_path / "store", 1, 3, 5, 7)


def made(store: Store) -> None:
    remove_old(store, Saving(keep_last=2), store.found()[0], set())


def steps(store: Store) -> list[int]:
    return [each.step for each in store.found()]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_the_newest_stay_and_the_others_go(store):
    made(store)
    assert steps(store) == [7, 5]


@pytest.mark.fault("corrupt or truncated checkpoint")
def test_a_damaged_one_takes_the_place_of_no_whole_one(store):
    flip(store.folder / "step-5" / manifests.NAME)
    made(store)
    assert steps(store) == [7, 3]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE], ids=errno.errorcode.__getitem__)
@pytest.mark.fault("disk full, EIO")
def test_one_that_cannot_be_read_stays_and_is_told(store, code):
    newest = store.found()[0]
    with file_faults.failing(range(4, 5), code, file_faults.watched_reads), pytest.raises(StorageFailed) as caught:
        remove_old(store, Saving(keep_last=2), newest, set())  # lists, opens and reads the newest, and opens the next
    assert os.strerror(code) in caught.value.what
    assert caught.value.where == str(store.folder / "step-5")
    assert steps(store) == [7, 5, 3]


def test_what_cannot_be_removed_keeps_no_other_one_from_going(store, monkeypatch):
    (store.folder / "step-0").symlink_to("/nowhere")
    remove = Store.remove

    def refusing(self: Store, checkpoint: Checkpoint) -> None:
        if checkpoint.step == 3:
            raise StorageFailed("could not be removed", where=str(checkpoint.path), fix="try again")
        remove(self, checkpoint)

    monkeypatch.setattr(Store, "remove", refusing)
    with pytest.raises(StorageFailed, match="could not be removed"):
        made(store)
    assert steps(store) == [7, 5, 3]
    monkeypatch.undo()
    made(store)
    assert steps(store) == [7, 5]
    assert not (store.folder / "step-0").is_symlink()


def test_a_whole_one_stays_under_a_name_that_a_damaged_one_had(store):
    broken = store.found()[0]
    flip(broken.path / TENSORS)
    damaged = {broken}
    remove_old(store, Saving(keep_last=3), store.save(stores.contents(6)), damaged)
    assert steps(store) == [6, 5, 3]
    for step in (7, 8):
        remove_old(store, Saving(keep_last=3), store.save(stores.contents(step)), damaged)
    assert steps(store) == [8, 7, 6]


@pytest.mark.fault("corrupt or truncated checkpoint")
def test_one_that_is_not_as_it_was_written_goes_at_once_and_counts_for_nothing(tmp_path, monkeypatch):
    """A byte that is flipped between writing and reading back."""
    told: list[Event] = []
    saver = Saver(Store(tmp_path), Saving(keep_last=2), told.append, before_write=lambda: None, shares_processor=False)
    save = Store.save

    def flipped(self: Store, contents: object, threads: int = 1) -> Checkpoint:
        checkpoint = save(self, contents, threads)  # pyright: ignore[reportArgumentType]
        if checkpoint.step == 6:
            flip(checkpoint.path / TENSORS)
        return checkpoint

    monkeypatch.setattr(Store, "save", flipped)
    for step in (2, 4, 6, 8):
        trees = {"run": {"weight": torch.ones(3)}}
        saver.save(State(step=step, epoch=0, reason="tested", best=step == 6, trees=trees, since=time.monotonic()))
        saver.settle()
        assert len(saver.store.found()) == (1 if step == 2 else 2)
    saver.close()
    assert steps(Store(tmp_path)) == [8, 4]
    assert [event.step for event in told if isinstance(event, Saved)] == [2, 4, 8]
    (notice,) = [event.text for event in told if isinstance(event, Noticed)]
    assert f"{tmp_path / 'step-6'}: read back, tensors.safetensors was changed after it was written" in notice
    assert notice.endswith("check the disk, and the memory of this machine")


@pytest.mark.fault("disk full, EIO")
def test_a_run_that_goes_on_needs_room_for_one_more_checkpoint_only(tmp_path, monkeypatch):
    make_new(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    free = shutil.disk_usage(tmp_path)._replace(free=250)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(StorageFailed, match="250 B are free on this disk, and the weights of 3 more checkpoints alone"):
        folder.check_space(100, Saving(keep_last=2))
    stores.filled(tmp_path / "run" / "checkpoints", 1, 2)
    folder.check_space(100, Saving(keep_last=2))
    with pytest.raises(StorageFailed, match="the weights of 1 more checkpoint alone take"):
        folder.check_space(300, Saving(keep_last=2))
