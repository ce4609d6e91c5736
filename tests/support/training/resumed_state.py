"""A run that goes on from its state, as a file holds it, beside the one that was not interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hasten
from hasten.checkpoint.state_tree import flattened
from hasten.checkpoint.store import Contents, Store
from hasten.training.run import Run


def losses(run: Run) -> list[str]:
    """Of every microbatch that is left."""
    return [run.step(batch).item().hex() for batch in run.batches()]


def state_in_a_file(run: Run, store: Store) -> Any:
    tree, tensors, _ = flattened({"run": run.state_dict()})
    contents = {"step": run.steps, "epoch": run.epoch, "reason": "", "best": False, "world_size": 1}
    return store.save(Contents(trees=tree, tensors=tensors, **contents)).read().states["run"]


def check_goes_on(make_job: Callable[[], hasten.Job], folder: Path, after: int = 4) -> Run:
    """make_job: gives the job as a new process would. Returns the run that went on, at its end."""
    with hasten.prepare(make_job()) as whole:
        wanted = losses(whole)
    with hasten.prepare(make_job()) as cut:
        for batch in cut.batches():
            cut.step(batch)
            if cut.steps == after:
                break
        state = state_in_a_file(cut, Store(folder))
    torch.manual_seed(1234)
    with hasten.prepare(make_job()) as resumed:
        resumed.load_state_dict(state)
        assert losses(resumed) == wanted[after:]
    return resumed
