"""Files of tensors: what safetensors' own reader says they are, whoever wrote them."""

from __future__ import annotations

import hashlib
import json
import threading

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hasten.checkpoint import safetensors_files
from hasten.checkpoint.digests import PIECE_BYTES, digest_of, in_threads
from hasten.checkpoint.manifest import holds_tensors
from hasten.checkpoint.safetensors_files import (
    TYPES,
    shared_out,
    tensors_in,
    write_tensors,
)
from hasten.checkpoint.store import Contents, Store
from hasten.errors import Misconfigured

WHOLE = {
    "b": torch.arange(3.0),
    "a": torch.tensor(7, dtype=torch.uint8),
    "é/\n\"'": torch.empty(0, 3, dtype=torch.bool),
    "c": torch.zeros(2, 3, dtype=torch.bfloat16),
    "": torch.ones(5, dtype=torch.int16),
}


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    def bits(tensor: Tensor) -> bytes:
        return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    forms = [{name: (each.dtype, each.shape) for name, each in tensors.items()} for tensors in (found, wanted)]
    return forms[0] == forms[1] and all(bits(found[name]) == bits(wanted[name]) for name in wanted)


def test_safetensors_reads_the_same_from_the_file(tmp_path):
    path = tmp_path / "tensors.safetensors"
    write_tensors(path, WHOLE)
    assert same(safetensors.torch.load_file(path), WHOLE)
    assert same(tensors_in(path.read_bytes()), WHOLE)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_reader_that_is_installed_knows_every_type_by_the_name_it_is_written_under(tmp_path, dtype):
    tensor = torch.arange(16, dtype=torch.uint8).view(dtype) if dtype is not torch.bool else torch.tensor([True, False])
    write_tensors(tmp_path / "file", {"a": tensor})
    assert same(safetensors.torch.load_file(tmp_path / "file"), {"a": tensor})


def test_each_tensor_begins_at_a_multiple_of_its_own_width(tmp_path):
    write_tensors(tmp_path / "file", WHOLE)
    content = (tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    for name, each in json.loads(content[8 : 8 + length]).items():
        assert each["data_offsets"][0] % WHOLE[name].element_size() == 0


def test_the_digest_is_that_of_the_file_also_of_one_in_many_pieces(tmp_path):
    large = torch.arange(3 * PIECE_BYTES // 8 + 5)
    digest = write_tensors(tmp_path / "file", WHOLE | {"large": large})
    content = (tmp_path / "file").read_bytes()
    assert (digest.bytes, digest.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert digest_of(tmp_path / "file") == digest
    assert tensors_in(content)["large"].equal(large)


def test_a_tensor_of_a_type_that_the_format_lacks_is_refused_by_name_and_no_file_is_made(tmp_path):
    with pytest.raises(Misconfigured, match=r"torch\.complex128") as caught:
        write_tensors(tmp_path / "file", {"fine": torch.zeros(1), "run/x": torch.zeros(1, dtype=torch.complex128)})
    assert caught.value.where == "run/x"
    assert not (tmp_path / "file").exists()


# Several files, written at once


@given(sizes=st.lists(st.integers(0, 9)), most=st.integers(1, 12))
def test_shares_hold_every_tensor_once_in_order_and_no_more_bytes_than_they_may(sizes, most):
    tensors = {str(number): torch.zeros(size, dtype=torch.uint8) for number, size in enumerate(sizes)}
    shares = [*shared_out(tensors, most)]
    assert [name for share in shares for name in share] == [*tensors]
    assert all(len(share) == 1 or sum(each.nbytes for each in share.values()) <= most for share in shares)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_checkpoint_of_several_files_comes_back_whole(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(safetensors_files, "MOST_BYTES", 40)
    tensors = {f"t{number}": torch.full((5,), float(number)) for number in range(7)}
    trees = {"run": {name: {"tensor": name} for name in tensors}}
    contents = {"step": 1, "epoch": 0, "reason": "", "best": False, "world_size": 1}
    saved = Store(tmp_path).save(Contents(trees=trees, tensors=tensors, **contents), threads)
    assert len([name for name in saved.verify(threads).files if holds_tensors(name)]) == 4
    state = saved.read().states["run"]
    assert {name: each.tolist() for name, each in state.items()} == {
        name: each.tolist() for name, each in tensors.items()
    }


def test_work_at_once_is_done_in_threads():
    meeting = threading.Barrier(2, timeout=150)
    assert in_threads(lambda item: (meeting.wait() >= 0, item), "ab", threads=2) == [(True, "a"), (True, "b")]
