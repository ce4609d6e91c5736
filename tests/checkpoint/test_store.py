"""Checkpoints in a folder: saved beside each other, found by what is in them, removed whole."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import replace

import pytest
import torch

from hasten.checkpoint import manifest as manifests
from hasten.checkpoint.manifest import STATE, TENSORS
from hasten.checkpoint.store import Store
from hasten.errors import Misconfigured, StorageFailed
from support.checkpoint import stores


def test_a_checkpoint_is_read_as_it_was_saved(tmp_path):
    store = Store(tmp_path / "run" / "checkpoints")
    made = store.save(stores.contents(12))
    assert (made.path.name, made.step, made.attempt) == ("step-12", 12, 1)
    loaded = made.read()
    assert stores.is_right(loaded)
    assert (loaded.manifest.epoch, loaded.manifest.best, loaded.manifest.reason) == (1, True, "a test")
    assert loaded.manifest == made.verify() == made.manifest()
    assert sorted(loaded.manifest.files) == [STATE, TENSORS]
    assert loaded.manifest.bytes == sum(
        path.stat().st_size for path in made.path.iterdir() if path.name != manifests.NAME
    )
    assert stores.names(store) == ["step-12"]


def test_a_step_that_is_saved_again_leaves_the_first_as_it_was_and_is_found_before_it(tmp_path):
    store = stores.filled(tmp_path, 7)
    first = stores.files_below(tmp_path / "step-7")
    for attempt in (2, 3):
        again = store.save(replace(stores.contents(7), reason=f"attempt {attempt}"))
        assert (again.path.name, again.attempt) == (f"step-7.{attempt}", attempt)
    assert stores.files_below(tmp_path / "step-7") == first
    assert [each.attempt for each in store.found()] == [3, 2, 1]
    loaded = store.newest(lambda *_: None)
    assert loaded is not None
    assert loaded.manifest.reason == "attempt 3"


def test_other_names_are_no_checkpoints_and_stay(tmp_path):
    store = stores.filled(tmp_path, 1)
    others = ["latest", "step-", "step-x", "step-3.tmp", "step-3.", ".step-3", "Step-3", "step-3 ", ".step-3.tmp-xyz"]
    others += [".step-3.tmp-00ff00ff0", ".step-3.tmp-00FF00FF", "x.step-3.tmp-00ff00ff"]
    for name in [*others, "step-" + "9" * 19]:
        (tmp_path / name).mkdir()
    store.clean()
    assert [each.path.name for each in store.found()] == ["step-1"]
    assert len(stores.names(store)) == len(others) + 2


def test_a_damaged_checkpoint_can_be_removed_whatever_it_is(tmp_path):
    store = stores.filled(tmp_path / "run", 1)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "run" / "step-2").mkdir()
    (tmp_path / "run" / "step-3").touch()
    (tmp_path / "run" / "step-4").symlink_to(tmp_path / "kept", target_is_directory=True)
    damaged = []
    assert stores.step_found(store, damaged) == 1
    assert [each.step for each in damaged] == [4, 3, 2]
    for each in damaged:
        store.remove(each)
    assert stores.names(store) == ["step-1"]
    assert os.listdir(tmp_path / "kept") == ["file"]


@pytest.mark.parametrize(
    ("bad", "raised"),
    [
        ({"tensors": {"a": torch.zeros(2, dtype=torch.complex128)}}, Misconfigured),
        ({"trees": {"run": math.nan}}, ValueError),
        ({"world_size": -1}, StorageFailed),
    ],
    ids=["type", "nan", "world"],
)
def test_what_could_not_be_read_again_is_not_saved_and_leaves_nothing(tmp_path, bad, raised):
    store = stores.filled(tmp_path, 1)
    with pytest.raises(raised):
        store.save(replace(stores.contents(2), **bad))
    assert stores.names(store) == ["step-1"]


def test_a_checkpoint_under_the_name_of_another_step_is_not_taken_for_it(tmp_path):
    store = stores.filled(tmp_path, 1, 5)
    shutil.copytree(tmp_path / "step-1", tmp_path / "step-9")
    found = []
    loaded = store.newest(lambda checkpoint, error: found.append((checkpoint.step, error.what)))
    assert loaded is not None
    assert loaded.checkpoint.step == 5
    assert found == [(9, "manifest.json belongs to step 1")]
