"""`hasten export`: the weights of a run as a plain file, from one of its checkpoints, without the job's code."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from hasten.checkpoint.files import check_writable, write_atomically
from hasten.checkpoint.listing import FOLDER, check_run
from hasten.checkpoint.sharded.rank_files import assembled
from hasten.checkpoint.store import Loaded, Store
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.formatting import shortened
from hasten.training.weights.tensor_file import as_file
from hasten.training.weights.weights_file import SAFETENSORS

_LONGEST = 300  # characters of a sentence about damaged checkpoints


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """kept_step: whose weights they are; not the checkpoint's where those of an earlier step were the best; None where
    the checkpoint does not say. bytes: of the file. damaged: a sentence for each newer checkpoint that is damaged."""

    step: int
    checkpoint: Path
    kept_step: int | None
    tensors: int
    bytes: int
    damaged: tuple[str, ...]


def export_weights(
    run: Path,
    output: Path,
    step: int | None = None,
    progress: Callable[[int, int], object] = lambda done, whole: None,
) -> Exported:
    """Write the weights that the run would return if it ended at a checkpoint, by the names of the job's own model.

    step: of the checkpoint; None takes the newest that is whole. progress: as of Checkpoint.read.
    Raises Misconfigured for a folder without a run, a step without a checkpoint, and an output that exists or is no
    safetensors file; StorageFailed when no such checkpoint is whole, and when the file cannot be written.
    """
    _check_output(output)  # before anything is read, which can take long
    check_run(run)
    loaded, damaged = _newest(Store(run / FOLDER), step, run, progress)
    weights = _plain(loaded)
    content = as_file(weights)
    _check_absent(output)
    write_atomically(output, content)
    return Exported(
        step=loaded.manifest.step,
        checkpoint=loaded.checkpoint.path,
        kept_step=_kept_step(loaded.states.get("run")),
        tensors=len(weights),
        bytes=len(content),
        damaged=damaged,
    )


def _check_output(output: Path) -> None:
    if output.name in ("", os.pardir):
        raise Misconfigured("is not a file name", where=str(output), fix=f"write -o {output / f'model{SAFETENSORS}'}")
    if output.suffix.lower() != SAFETENSORS:
        fix = f"write -o {output.with_suffix(SAFETENSORS)}; safetensors.torch.load_file reads it"
        raise Misconfigured("weights are written as safetensors only", where=str(output), fix=fix)
    _check_absent(output)
    check_writable(output.parent)


def _check_absent(output: Path) -> None:
    if os.path.lexists(output):
        fix = "choose another name, or move the file away: weights are never replaced"
        raise Misconfigured("exists already", where=str(output), fix=fix)


def _newest(
    store: Store, step: int | None, run: Path, progress: Callable[[int, int], object]
) -> tuple[Loaded, tuple[str, ...]]:
    """The newest checkpoint that is whole, and a sentence for each newer one that is not."""
    damaged = list[str]()
    for checkpoint in store.found():
        if step in (None, checkpoint.step):
            try:
                return checkpoint.read(progress), tuple(damaged)
            except StorageFailed as error:
                damaged.append(f"{checkpoint.path.name} is not used: {error.what}")
    fix = f"list the checkpoints: {shlex.join(['hasten', 'checkpoints', str(run)])}"
    if damaged:
        raise StorageFailed(shortened("; ".join(damaged), _LONGEST), where=str(run), fix=fix)
    what = "no checkpoint was saved yet" if step is None else f"there is no checkpoint of step {step:,}"
    raise Misconfigured(what, where=str(run), fix=fix)


def _plain(loaded: Loaded) -> dict[str, Tensor]:
    """Each cloned, as tied weights must not share memory in a file."""
    found = loaded.states.get("weights")
    if isinstance(found, Mapping) and found:
        whole = {name: assembled(each) for name, each in cast("Mapping[Any, Any]", found).items()}
        if all(isinstance(name, str) and isinstance(each, Tensor) for name, each in whole.items()):
            return {name: each.clone().contiguous() for name, each in whole.items()}
    what = "holds no weights that safetensors can store"
    raise StorageFailed(what, where=str(loaded.checkpoint.path), fix="choose another checkpoint with --step")


def _kept_step(run: Any) -> int | None:
    """From the run's state, which is untrusted."""
    match run:
        case {"result": {"best": dict(), "step": int(step)}}:
            return step
    return None
