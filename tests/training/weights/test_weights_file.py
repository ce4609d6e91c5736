"""Weights from files of others: found inside what trainers wrap them in, and nothing in such a file ever runs."""

from __future__ import annotations

import collections
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import hasten
from hasten.errors import Misconfigured, StorageFailed
from hasten.training.weights import weights_file
from hasten.training.weights.weights_file import without_prefixes


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {"layer.weight": torch.randn(3, 6, generator=generator), "layer.bias": torch.randn(3, generator=generator)}


def same(found: dict[str, torch.Tensor]) -> bool:
    wanted = weights()
    return found.keys() == wanted.keys() and all(torch.equal(each, wanted[name]) for name, each in found.items())


def saved(path: Path, content: Any, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def safetensors_file(path: Path) -> Path:
    safetensors.torch.save_file(weights(), path)
    return path


def with_hidden_methods(path: Path) -> Path:
    """Weights in a dictionary whose own attributes hide its methods, as a file can give them."""
    found = collections.OrderedDict(weights())
    found.__dict__.update(dict.fromkeys(("itemz", "keyz", "gez"), collections.OrderedDict))  # to be pickled at all
    with zipfile.ZipFile(saved(path, {"model": found})) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            for innocent, method in ((b"itemz", b"items"), (b"keyz", b"keys"), (b"gez", b"get")):
                data = data.replace(innocent, method) if name.endswith(".pkl") else data
            archive.writestr(name, data)
    return path


WRITTEN = {
    "safetensors": lambda folder: safetensors_file(folder / "a.safetensors"),
    "torch.save": lambda folder: saved(folder / "a.pt", weights()),
    "torch.save of old": lambda folder: saved(folder / "a.pth", weights(), _use_new_zipfile_serialization=False),
    "parameters": lambda folder: saved(
        folder / "a.bin", collections.OrderedDict((name, nn.Parameter(each)) for name, each in weights().items())
    ),
    "state_dict": lambda folder: saved(folder / "a.ckpt", {"epoch": 3, "state_dict": weights(), "optimizer": {}}),
    "model": lambda folder: saved(folder / "a.pt", {"model": weights(), "args": None}),
    "wrapped twice": lambda folder: saved(folder / "a.pt", {"model": {"state_dict": weights()}}),
    "in an odd dictionary": lambda folder: with_hidden_methods(folder / "a.pt"),
    "both": lambda folder: saved(
        folder / "a.pt", {f"module._orig_mod.{name}": each for name, each in weights().items()}
    ),
    "a part of it compiled": lambda folder: saved(
        folder / "a.pt", {name.replace("layer.", "layer._orig_mod."): each for name, each in weights().items()}
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITTEN)
def test_weights_are_found_in_what_trainers_write(tmp_path: Path, kind: str):
    assert same(hasten.read_weights(WRITTEN[kind](tmp_path)))


@pytest.mark.parametrize(
    ("names", "without"),
    [
        (["module.a", "module.b"], ["a", "b"]),
        (["module.a", "b"], ["module.a", "b"]),
        (["_orig_mod.a", "b._orig_mod.c"], ["a", "b.c"]),
        (["module._orig_mod.a"], ["a"]),
        (["a._orig_mod.b", "a.b"], ["a._orig_mod.b", "a.b"]),  # both would be a.b
    ],
)
def test_only_what_torch_puts_before_names_is_taken_away(names: list[str], without: list[str]):
    assert list(without_prefixes({name: torch.zeros(1) for name in names})) == without


class Harm:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("place", ["alone", "beside the weights", "among them"])
def test_what_a_file_asks_to_run_is_named_and_not_run(tmp_path: Path, monkeypatch, old: bool, place: str):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # which other code may need, and we never heed
    harm, marker = Harm(tmp_path / "harmed"), tmp_path / "harmed"
    content = {"alone": harm, "beside the weights": {"state_dict": weights(), "args": harm}}.get(
        place, weights() | {"layer.harm": harm}
    )
    path = saved(tmp_path / "a.pt", content, _use_new_zipfile_serialization=not old)
    with pytest.raises(Misconfigured, match=r"asks for (os|posix)\.mkdir, which is not allowed in weights") as caught:
        hasten.read_weights(path)
    assert not marker.exists()
    assert "weights_only" not in str(caught.value)  # torch's own advice is to run it
    with open(path, "rb") as file:
        torch.load(file, weights_only=False)  # so the payload is one
    assert marker.exists()


class Hyper:
    """What trainers like to put beside weights."""


def other(folder: Path, content: Any, name: str = "a.pt") -> Path:
    return saved(folder / name, content)


def with_bytes(folder: Path, content: bytes, name: str = "a.pt") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def scripted(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "a.pt", "w") as archive:
        for name, content in (("constants.pkl", pickle.dumps(())), ("data.pkl", pickle.dumps({})), ("version", b"3")):
            archive.writestr(f"a/{name}", content)
    return folder / "a.pt"


REFUSED = {
    "an object": (lambda folder: other(folder, {"state_dict": weights(), "hyper": Hyper()}), "asks for .*Hyper"),
    "torchscript": (scripted, "TorchScript"),
    "two wrappers": (lambda folder: other(folder, {"model": weights(), "state_dict": weights()}), "only one of them"),
    "nothing": (lambda folder: other(folder, {}), "holds no weights: it is empty"),
    "other things": (lambda folder: other(folder, weights() | {"epoch": 3}), r"named dense .*: epoch \(int\)"),
    "a sparse one": (lambda folder: other(folder, {"a": torch.eye(2).to_sparse()}), "dense tensors"),
    "wrapped too often": (lambda folder: other(folder, {"model": {"model": {"model": {"model": weights()}}}}), "model"),
    "no bytes": (lambda folder: with_bytes(folder, b""), "is not a weights file that torch.load reads"),
    "safetensors, a pickle": (lambda folder: other(folder, weights(), "a.safetensors"), "not a valid safetensors file"),
    "a folder": (lambda folder: (folder / "a.pt").mkdir() or folder / "a.pt", "it is a folder, not a file"),
    "nowhere": (lambda folder: folder / "a.pt", "there is no such file"),
    "another ending": (lambda folder: with_bytes(folder, b"", "a.h5"), r"\.h5 is not a file type for weights"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_holds_no_weights_is_refused_with_the_reason(tmp_path: Path, kind: str):
    write, says = REFUSED[kind]
    path = write(tmp_path)
    with pytest.raises(Misconfigured, match=says) as caught:
        hasten.read_weights(path)
    assert caught.value.where == str(path)
    assert caught.value.fix


def test_a_file_that_cannot_be_read_is_a_failure_of_storage(tmp_path: Path, monkeypatch):
    def refuse(path: Any, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(weights_file.safetensors.torch, "load_file", refuse)
    for name in ("a.pt", "a.safetensors"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(StorageFailed, match="cannot be read: Permission denied"):
            hasten.read_weights(tmp_path / name)
