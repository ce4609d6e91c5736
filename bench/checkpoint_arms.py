"""The arms of the checkpoint benchmark: one save of a training state, alone on the disk.

The state is that of a GPT-2 of 124 million parameters in the making, cut to 1 GiB: weights, and the two averages that
AdamW keeps of each gradient, in the shapes that such a model has. Every arm is given the same dictionary.

torch.save and safetensors leave the data in the system's cache, from where it reaches the disk when the system likes;
"forced" adds what makes a save durable, in the order that makes it so: the file to the disk, then its new name. hasten
always does, and takes a digest of every byte as well. Between two saves the first one is removed and the system's cache
goes to the disk, which is billed to nobody: a run saves so seldom that each save finds a quiet disk.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from hasten.checkpoint.digests import most_threads
from hasten.checkpoint.state_tree import flattened
from hasten.checkpoint.store import Checkpoint, Contents, Store

GIB = 1 << 30
WIDTH, LAYERS, WORDS, PLACES = 768, 12, 50257, 1024

Save = Callable[[Path], object]


def arm(kind: str, folder: str, bytes: int) -> Callable[[int], float]:
    """kind: a name in KINDS. folder: on the disk that is written to. bytes: of the state."""
    home = Path(tempfile.mkdtemp(dir=folder))
    state = training_state(bytes)
    save = KINDS[kind](home, state)
    saved = 0

    def window(steps: int) -> float:
        nonlocal saved
        seconds = 0.0
        for _ in range(steps):
            saved += 1
            begin = time.perf_counter()
            save(home / str(saved))
            seconds += time.perf_counter() - begin
            shutil.rmtree(home)
            home.mkdir()
            os.sync()
        return seconds

    return window


def training_state(bytes: int) -> dict[str, Any]:
    """Of as many of the model's tensors as fill so many bytes, the last one cut."""
    shapes = [(WORDS, WIDTH), (PLACES, WIDTH)]
    for _ in range(LAYERS):
        shapes += [(3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,), (4 * WIDTH, WIDTH), (4 * WIDTH,)]
        shapes += [(WIDTH, 4 * WIDTH), (WIDTH,), *[(WIDTH,)] * 4]
    left = bytes // 4 // 3
    model: dict[str, Tensor] = {}
    moments: dict[int, dict[str, Tensor]] = {}
    for number, shape in enumerate(shapes):
        rows = min(shape[0], left * shape[0] // max(torch.Size(shape).numel(), 1))
        if rows:
            cut = (rows, *shape[1:])
            model[f"tensors.{number}"] = torch.randn(cut)
            moments[number] = {"exp_avg": torch.randn(cut), "exp_avg_sq": torch.rand(cut), "step": torch.tensor(7.0)}
            left -= model[f"tensors.{number}"].numel()
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [*moments]}]
    return {"model": model, "optimizer": {"state": moments, "param_groups": groups}}


def _hasten(home: Path, state: dict[str, Any]) -> Callable[[Path], Checkpoint]:
    store = Store(home)

    def save(path: Path) -> Checkpoint:
        tree, tensors, _ = flattened({"run": state})
        contents = {"step": int(path.name), "epoch": 0, "reason": "measured", "best": False, "world_size": 1}
        return store.save(Contents(trees=tree, tensors=tensors, **contents), most_threads())

    return save


def _read_back(save: Callable[[Path], Checkpoint]) -> Save:
    return lambda path: save(path).verify(most_threads())


def _torch_save(state: dict[str, Any]) -> Save:
    return lambda path: torch.save(state, path)


def _distributed(state: dict[str, Any]) -> Save:
    """torch.distributed.checkpoint in one process, whose writer forces its files to the disk by itself."""
    return lambda path: dcp.save(  # pyright: ignore[reportPrivateImportUsage]
        state, checkpoint_id=path, no_dist=True
    )


def _safetensors(state: dict[str, Any]) -> Save:
    _, tensors, _ = flattened(state)
    return lambda path: safetensors.torch.save_file(tensors, path)


def _forced(save: Save) -> Save:
    def durable(path: Path) -> None:
        temporary = path.with_name(f"{path.name}.tmp")
        save(temporary)
        _force(temporary)
        os.replace(temporary, path)
        _force(path.parent)

    return durable


def _force(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk_alone(state: dict[str, Any]) -> Save:
    """As many bytes past the system's cache: no save that is on the disk when it returns can take less."""
    _, tensors, _ = flattened(state)
    block = mmap.mmap(-1, 1 << 22)  # where a page begins, as a disk wants it
    block[:] = os.urandom(len(block))
    pieces = sum(tensor.nbytes for tensor in tensors.values()) // len(block)

    def save(path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        try:
            for _ in range(pieces):
                os.write(descriptor, block)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    return save


KINDS: dict[str, Callable[[Path, dict[str, Any]], Save]] = {
    "torch.save": lambda home, state: _torch_save(state),
    "torch.save, forced": lambda home, state: _forced(_torch_save(state)),
    "torch.distributed.checkpoint": lambda home, state: _distributed(state),
    "safetensors": lambda home, state: _safetensors(state),
    "safetensors, forced": lambda home, state: _forced(_safetensors(state)),
    "the disk alone": lambda home, state: _disk_alone(state),
    "hasten": _hasten,
    "hasten, read back": lambda home, state: _read_back(_hasten(home, state)),
}
