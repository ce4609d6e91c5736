"""`hasten export`: the weights of a run as a plain file, from one of its checkpoints, without the job's code."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from hasten.checkpoint.files import check_writable, write_new
from hasten.checkpoint.listing import FOLDER, check_run
from hasten.checkpoint.sharded.rank_files import assembled
from hasten.checkpoint.store import Checkpoint, Loaded, Store
from hasten.errors import Misconfigured, StorageFailed
from hasten.training.weights.tensor_file import as_file
from hasten.training.weights.weights_file import PICKLED, SAFETENSORS

_MOST_SHOWN = 8


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


def export_weights(run: Path, output: Path, step: int | None = None) -> Exported:
    """Write the weights that the run would return if it ended at a checkpoint, by the names of the job's own model.

    step: of the checkpoint; None takes the newest that is whole.
    Raises Misconfigured for a folder without a run, a step without a checkpoint, and an output that exists or is no
    safetensors file; StorageFailed when no such checkpoint is whole, and when the file cannot be written.
    """
    _check_output(output)
    check_run(run)
    loaded, damaged = _newest(Store(run / FOLDER), step, run)
    weights = _plain(loaded)
    content = as_file(weights)
    if not write_new(output, content):
        raise _present(output)
    return Exported(
        step=loaded.manifest.step,
        checkpoint=loaded.checkpoint.path,
        kept_step=_kept_step(loaded.states.get("run")),
        tensors=len(weights),
        bytes=len(content),
        damaged=damaged,
    )


def _check_output(output: Path) -> None:
    """Before anything is read, which can take long."""
    if output.name in ("", os.pardir):
        raise Misconfigured("names no file", where=str(output), fix=f"write -o {output / f'model{SAFETENSORS}'}")
    named, suffix = output.with_suffix(SAFETENSORS), output.suffix.lower()
    if suffix in PICKLED:
        what = f"a {suffix} file is a pickle, which can run code when it is opened; hasten writes none"
        raise Misconfigured(what, where=str(output), fix=f"write -o {named}; torch and others read it")
    if suffix != SAFETENSORS:
        raise Misconfigured("weights are written as safetensors only", where=str(output), fix=f"write -o {named}")
    if os.path.lexists(output):
        raise _present(output)
    check_writable(output.parent)


def _present(output: Path) -> Misconfigured:
    fix = "choose another name, or move the file away: weights are never replaced"
    return Misconfigured("exists already", where=str(output), fix=fix)


def _newest(store: Store, step: int | None, run: Path) -> tuple[Loaded, tuple[str, ...]]:
    """The newest checkpoint that is whole, and a sentence for each newer one that is not."""
    found = store.found()
    wanted = [each for each in found if step in (None, each.step)]
    command = shlex.join(["hasten", "checkpoints", str(run)])
    if not wanted:
        steps = list(dict.fromkeys(f"{each.step:,}" for each in found))
        listing = f"; there are those of step {_first_few(steps, ', ')}" if steps else ""
        what = "no checkpoint was saved yet" if not found else f"there is no checkpoint of step {step:,}{listing}"
        raise Misconfigured(what, where=str(run), fix=f"see what there is: {command}")
    damaged = list[tuple[Checkpoint, str]]()
    for checkpoint in wanted:
        try:
            loaded = checkpoint.read()
            return loaded, tuple(f"{name} is not used: {what}" for name, what in _still_there(damaged))
        except StorageFailed as error:
            damaged.append((checkpoint, error.what))
    shown = [f"{name}: {what}" for name, what in _still_there(damaged)]
    if not shown:
        what = "no checkpoint could be used: the run removed them while they were read"
        raise StorageFailed(what, where=str(run), fix="run it again")
    what = f"no checkpoint that could be used is whole: {_first_few(shown, '; ')}"
    raise StorageFailed(what, where=str(run), fix=f"see what is wrong: {command}")


def _first_few(texts: Sequence[str], between: str) -> str:
    more = f" and {len(texts) - _MOST_SHOWN:,} more" if len(texts) > _MOST_SHOWN else ""
    return between.join(texts[:_MOST_SHOWN]) + more


def _still_there(damaged: list[tuple[Checkpoint, str]]) -> list[tuple[str, str]]:
    """Without those that the run removed meanwhile."""
    return [(each.path.name, what) for each, what in damaged if each.path.exists()]


def _plain(loaded: Loaded) -> dict[str, Tensor]:
    """Each cloned, as tied weights must not share memory in a file."""
    found = loaded.states.get("weights")
    if isinstance(found, Mapping):
        found = {name: assembled(each) for name, each in cast("Mapping[Any, Any]", found).items()}
    if not isinstance(found, Mapping) or not found or not all(map(_is_entry, cast("Mapping[Any, Any]", found).items())):
        what = "holds no weights that a file can hold"
        raise StorageFailed(what, where=str(loaded.checkpoint.path), fix="choose another one with --step")
    return {name: each.clone().contiguous() for name, each in cast("Mapping[str, Tensor]", found).items()}


def _is_entry(entry: tuple[Any, Any]) -> bool:
    return isinstance(entry[0], str) and entry[0] != "__metadata__" and isinstance(entry[1], Tensor)


def _kept_step(run: Any) -> int | None:
    """From the run's state, which is untrusted."""
    match run:
        case {"result": {"best": dict(), "step": int(step)}}:
            return step
        case {"best": (dict(), int(step))}:  # as 0.1.0 wrote it
            return step
    return None
