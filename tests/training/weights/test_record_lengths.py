"""Weights come out of the file's own records: a file that asks for more than they hold is refused."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch._utils import _rebuild_tensor_v2

import hasten
from faults.commands import jobs_in, ran
from hasten.errors import Misconfigured


class Tensor(NamedTuple):
    """A float32 tensor as torch.save describes it. storage: its key; claimed: how many elements it is said to hold."""

    storage: str
    claimed: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    view: tuple[str, int, int] | None = None  # key, first element and length, which old files may have


class _Rebuilt:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        rest = (self.tensor.offset, self.tensor.size, self.tensor.stride, False, OrderedDict())
        return (_rebuild_tensor_v2, (self.tensor, *rest))


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        return ("storage", torch.FloatStorage, obj.storage, "cpu", obj.claimed, *([obj.view] if self.old else []))

    old = False


def _pickled(content: Any, old: bool) -> bytes:
    written = io.BytesIO()
    pickler = _Pickler(written, protocol=2)
    pickler.old = old
    pickler.dump(content)
    return written.getvalue()


def file_of(path: Path, tensors: dict[str, Any], records: dict[str, bytes], *, old: bool = False) -> Path:
    """old: in the format of torch.save before torch 1.6."""
    content = _pickled(
        {name: _Rebuilt(each) if isinstance(each, Tensor) else each for name, each in tensors.items()}, old
    )
    if old:
        header = (torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION, {"little_endian": True})
        parts = [*(pickle.dumps(each, 2) for each in header), content, pickle.dumps([*records], 2)]
        parts += [(len(each) // 4).to_bytes(8, "little") + each for each in records.values()]
        path.write_bytes(b"".join(parts))
        return path
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {"data.pkl": content, "byteorder": b"little", "version": b"3\n"}.items():
            archive.writestr(f"archive/{name}", data)
        for name, data in records.items():
            archive.writestr(f"archive/data/{name}", data)
        archive.writestr("archive/.data/serialization_id", b"0" * 4096)  # what a reader past the end would find
    return path


def numbers(first: int, last: int) -> bytes:
    return torch.arange(first, last + 1).float().numpy().tobytes()


WEIGHT, BIAS = Tensor("0", 4, 0, (4,), (1,)), Tensor("1", 3, 0, (3,), (1,))
RECORDS = {"0": numbers(1, 4), "1": numbers(5, 7)}
UNLISTED = "a storage of no record"  # in the old format torch reads what its memory has
WRONG: dict[str, tuple[dict[str, Any], dict[str, bytes]]] = {
    "a record that is too short": ({"weight": WEIGHT._replace(claimed=12, size=(12,))}, RECORDS),
    "the last record too short": ({"bias": BIAS, "weight": WEIGHT}, {"1": numbers(5, 7), "0": numbers(1, 1)}),
    "a record that is too long": ({"weight": WEIGHT}, RECORDS | {"0": numbers(1, 5)}),
    "a record that is empty": ({"weight": WEIGHT}, RECORDS | {"0": b""}),
    "an offset past the end": ({"weight": WEIGHT._replace(offset=1)}, RECORDS),
    "an offset below 0": ({"weight": WEIGHT._replace(offset=-1)}, RECORDS),
    "a size past the end": ({"weight": WEIGHT._replace(size=(5,))}, RECORDS),
    "strides past the end": ({"weight": WEIGHT._replace(size=(2, 2), stride=(3, 1))}, RECORDS),
    "strides below 0": ({"weight": WEIGHT._replace(offset=3, stride=(-1,))}, RECORDS),
    UNLISTED: ({"weight": WEIGHT._replace(storage="2")}, RECORDS),
    "a storage of less than nothing": ({"weight": WEIGHT._replace(claimed=-4)}, RECORDS),
    "a storage beyond all memory": ({"weight": WEIGHT._replace(claimed=1 << 61)}, RECORDS),
    "one storage by two lengths": ({"one": WEIGHT, "weight": WEIGHT._replace(claimed=12, size=(12,))}, RECORDS),
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "old"), [(each, old) for each in WRONG for old in (False, True) if not (old and each == UNLISTED)]
)
def test_what_the_records_do_not_hold_is_refused(tmp_path: Path, wrong: str, old: bool):
    tensors, records = WRONG[wrong]
    others = {"bias": BIAS} | {name: each for name, each in tensors.items() if name != "bias"}
    path = file_of(tmp_path / "a.pt", others, records, old=old)
    with pytest.raises(Misconfigured) as caught:
        hasten.read_weights(path)
    assert caught.value.where == str(path)
    assert caught.value.fix


@pytest.mark.parametrize("old", [False, True], ids=["zip", "old"])
def test_tensors_may_share_a_record_and_lie_anywhere_in_it(tmp_path: Path, old: bool):
    tensors = {
        "one": Tensor("0", 4, 0, (2,), (1,)),
        "other": Tensor("0", 4, 2, (2,), (1,)),
        "across": Tensor("0", 4, 0, (2, 2), (1, 2)),
        "repeated": Tensor("0", 4, 3, (3,), (0,)),
        "empty": Tensor("2", 0, 0, (0,), (1,)),
    }
    found = hasten.read_weights(file_of(tmp_path / "a.pt", tensors, {"0": numbers(1, 4), "2": b""}, old=old))
    assert {name: each.tolist() for name, each in found.items()} == {
        "one": [1, 2],
        "other": [3, 4],
        "across": [[1, 3], [2, 4]],
        "repeated": [4, 4, 4],
        "empty": [],
    }


def test_views_of_a_storage_in_an_old_file_are_read(tmp_path: Path):
    tensors = {"weight": Tensor("0", 4, 0, (2,), (1,), ("7", 2, 2))}
    found = hasten.read_weights(file_of(tmp_path / "a.pt", tensors, {"0": numbers(1, 4)}, old=True))
    assert found["weight"].tolist() == [3, 4]


def entry(first: int, last: int, *shape: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [first, last]}


SAFETENSORS = {
    "past the file's end": {"a": entry(0, 16, 4), "b": entry(16, 36, 5)},
    "before the file's end": {"a": entry(0, 16, 4), "b": entry(16, 28, 3)},
    "over each other": {"a": entry(0, 20, 5), "b": entry(16, 32, 4)},
    "the same bytes": {"a": entry(0, 32, 8), "b": entry(0, 32, 8)},
    "a hole between them": {"a": entry(0, 12, 3), "b": entry(16, 32, 4)},
    "fewer bytes than the shape": {"a": entry(0, 16, 5), "b": entry(16, 32, 4)},
    "more bytes than the shape": {"a": entry(0, 16, 3), "b": entry(16, 32, 4)},
    "an end before its beginning": {"a": entry(16, 0, 4), "b": entry(16, 32, 4)},
    "a shape beyond all numbers": {"a": entry(0, 16, 1 << 62, 4), "b": entry(16, 32, 4)},
}


@pytest.mark.parametrize("wrong", SAFETENSORS)
def test_a_safetensors_file_whose_places_do_not_fit_is_refused(tmp_path: Path, wrong: str):
    header, path = json.dumps(SAFETENSORS[wrong]).encode(), tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + numbers(1, 8))
    with pytest.raises(Misconfigured, match="is not a valid safetensors file: "):
        hasten.read_weights(path)


def test_no_run_begins_with_weights_that_the_file_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    jobs_in(tmp_path, "from support import small_job as job", monkeypatch)
    tensors = {"weight": Tensor("0", 18, 0, (3, 6), (6, 1)), "bias": Tensor("1", 3, 0, (3,), (1,))}
    file_of(tmp_path / "a.pt", tensors, {"0": numbers(1, 1), "1": numbers(5, 7)})
    code, error = ran("train", "faulty_jobs.py:job", "--weights", "a.pt")
    assert code == 2
    assert "is not a weights file that torch.load reads" in error
    assert "download or save the file again" in error  # torch.load refuses it too, so it cannot convert it
