"""Small checkpoints whose content is known, and what must be found in a folder of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hasten.checkpoint.state_tree import flattened
from hasten.checkpoint.store import Checkpoint, Contents, Loaded, Store
from hasten.errors import Damaged


def states(step: int) -> dict[str, Any]:
    """What the checkpoint of a step holds."""
    return {"run": {"weights": torch.arange(3) * step, "lr": [0.5**step], "step": step}, "place": (step, "é")}


def contents(step: int) -> Contents:
    trees, tensors, _ = flattened(states(step))
    return Contents(
        step=step, epoch=step // 10, reason="a test", best=step % 2 == 0, world_size=1, trees=trees, tensors=tensors
    )


def is_right(loaded: Loaded) -> bool:
    """Whether it holds what was saved for its step."""
    step, found, wanted = loaded.checkpoint.step, dict(loaded.states), states(loaded.checkpoint.step)
    weights = found["run"].pop("weights"), wanted["run"].pop("weights")
    return found == wanted and torch.equal(*weights) and loaded.manifest.step == step


def filled(folder: Path, *steps: int) -> Store:
    """A store with a checkpoint of each step."""
    store = Store(folder)
    for step in steps:
        store.save(contents(step))
    return store


def step_found(store: Store, damaged: list[Checkpoint] | None = None) -> int | None:
    """The step that a run would go on from, its content checked. Where `damaged` is None, none may be there."""

    def tell(checkpoint: Checkpoint, error: Damaged) -> None:
        assert damaged is not None, f"{checkpoint.path.name}: {error}"
        damaged.append(checkpoint)

    loaded = store.newest(tell)
    assert loaded is None or is_right(loaded), f"{loaded.checkpoint.path.name} holds something else"
    return None if loaded is None else loaded.checkpoint.step


def names(store: Store) -> list[str]:
    """What lies in the folder."""
    return sorted(path.name for path in store.folder.iterdir()) if store.folder.exists() else []


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file, with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
