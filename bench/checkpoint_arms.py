"""The arms of the checkpoint benchmark: one save of a training state, and the removal of the one before.

The state is that of a GPT-2 of 124 million parameters in the making, cut to 1 GiB: weights, and the two averages that
AdamW keeps of each gradient, in the shapes that such a model has. Every arm is given the same dictionary.

torch.save and safetensors leave the data in the system's cache, from where it reaches the disk when the system likes;
"forced" adds what makes a save durable, in the order that makes it so: the file to the disk, then its new name. hasten
always does, and takes a digest of every byte as well.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from hasten.checkpoint.state import flattened
from hasten.checkpoint.store import Checkpoint, Contents, Store

GIB = 1 << 30
WIDTH, LAYERS, WORDS, PLACES = 768, 12, 50257, 1024

Save = Callable[[Path], object]


def arm(kind: str, folder: str, bytes: int) -> Callable[[int], None]:
    """kind: a name in KINDS. folder: on the disk that is written to. bytes: of the state."""
    home = Path(tempfile.mkdtemp(dir=folder))
    state = training_state(bytes)
    window = _hasten(home / "checkpoints", state) if kind == "hasten" else _rotated(home, KINDS[kind](state))
    # What other arms have left in the system's cache is written before the clock runs, and billed to nobody.
    window.before = os.sync  # pyright: ignore[reportFunctionMemberAccess]
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


def _hasten(folder: Path, state: dict[str, Any]) -> Callable[[int], None]:
    store, step = Store(folder), 0
    before: Checkpoint | None = None

    def window(steps: int) -> None:
        nonlocal step, before
        for _ in range(steps):
            step += 1
            tree, tensors = flattened({"run": state})
            contents = {"step": step, "epoch": 0, "reason": "measured", "best": False, "world_size": 1}
            saved = store.save(Contents(trees=tree, tensors=tensors, **contents), len(os.sched_getaffinity(0)))
            if before is not None:
                store.remove(before)
            before = saved

    return window


def _rotated(home: Path, save: Save) -> Callable[[int], None]:
    number = 0

    def window(steps: int) -> None:
        nonlocal number
        for _ in range(steps):
            number += 1
            save(home / str(number))
            before = home / str(number - 1)
            if before.is_dir():
                shutil.rmtree(before)
            else:
                before.unlink(missing_ok=True)

    return window


def _torch_save(state: dict[str, Any]) -> Save:
    return lambda path: torch.save(state, path)


def _distributed(state: dict[str, Any]) -> Save:
    """torch.distributed.checkpoint in one process, whose writer forces its files to the disk by itself."""
    return lambda path: dcp.save(  # pyright: ignore[reportPrivateImportUsage]
        state, checkpoint_id=path, no_dist=True
    )


def _safetensors(state: dict[str, Any]) -> Save:
    _, tensors = flattened(state)
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


KINDS: dict[str, Callable[[dict[str, Any]], Save]] = {
    "torch.save": _torch_save,
    "torch.save, forced": lambda state: _forced(_torch_save(state)),
    "torch.distributed.checkpoint": _distributed,
    "safetensors": _safetensors,
    "safetensors, forced": lambda state: _forced(_safetensors(state)),
}
