"""Tensors in one file or in several that are worked on at once."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.checkpoint import tensor_files
from hasten.checkpoint.at_once import at_once
from hasten.checkpoint.saved import holds_tensors
from hasten.checkpoint.store import Contents, Store
from hasten.checkpoint.tensor_files import shared_out, write_tensor_files
from hasten.errors import StorageFailed


@given(sizes=st.lists(st.integers(0, 9)), most=st.integers(1, 12))
def test_shares_hold_every_tensor_once_in_order_and_no_more_bytes_than_they_may(sizes, most):
    tensors = {str(number): torch.zeros(size, dtype=torch.uint8) for number, size in enumerate(sizes)}
    shares = [*shared_out(tensors, most)]
    assert [name for share in shares for name in share] == [*tensors]
    assert all(len(share) == 1 or sum(each.nbytes for each in share.values()) <= most for share in shares)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_checkpoint_of_several_files_comes_back_whole(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(tensor_files, "MOST_BYTES", 40)
    tensors = {f"t{number}": torch.full((5,), float(number)) for number in range(7)}
    trees = {"run": {name: {"tensor": name} for name in tensors}}
    contents = {"step": 1, "epoch": 0, "reason": "", "best": False, "world_size": 1}
    saved = Store(tmp_path).save(Contents(trees=trees, tensors=tensors, **contents), threads)
    assert len([name for name in saved.verify(threads).files if holds_tensors(name)]) == 4
    state = saved.read().states["run"]
    assert {name: each.tolist() for name, each in state.items()} == {
        name: each.tolist() for name, each in tensors.items()
    }


def test_a_file_that_fails_among_several_is_told_and_nothing_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "MOST_BYTES", 8)
    write = tensor_files.write_tensors

    def failing(path, tensors):
        if path.name == "tensors-2.safetensors":
            raise StorageFailed("no space left", where=str(path), fix="free space")
        return write(path, tensors)

    monkeypatch.setattr(tensor_files, "write_tensors", failing)
    tensors = {str(number): torch.zeros(2) for number in range(4)}
    contents = {"step": 1, "epoch": 0, "reason": "", "best": False, "world_size": 1}
    with pytest.raises(StorageFailed, match="no space left"):
        Store(tmp_path).save(Contents(trees={}, tensors=tensors, **contents), 2)
    assert [*tmp_path.iterdir()] == []


def test_work_at_once_is_done_at_once():
    meeting = threading.Barrier(2, timeout=150)
    assert at_once(lambda item: (meeting.wait() >= 0, item), "ab", threads=2) == [(True, "a"), (True, "b")]


def test_no_tensor_makes_no_file(tmp_path):
    assert write_tensor_files(tmp_path, {}, 2) == {}
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "name", ["tensors.safetensors.json", "xtensors.safetensors", "tensors-.safetensors", "state.json"]
)
def test_only_files_of_tensors_are_taken_for_such(name):
    assert not holds_tensors(name)
