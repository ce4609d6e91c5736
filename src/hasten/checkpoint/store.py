"""The checkpoints of one run: saved whole or not at all, and read only after every byte was verified.

    .step-120.tmp-1f3a07c2/  files, each forced to the disk, then the manifest, then the folder
        tensors.safetensors      all tensors; more files of 128 MiB each follow (safetensors_files.py)
        parts-0003.safetensors   instead: what rank 3 holds of a model in parts, with pieces.json (sharded/)
        state.json               everything else (state_tree.py)
        manifest.json            size and SHA-256 of each of these, and a seal of its own (manifest.py)
    step-120/                the same, renamed; then the parent folder is forced to the disk
    step-120.2/              the same step, saved again by a run that was resumed before it: a name is never reused
    .step-60.tmp-9b02e4d1/   an old one about to be removed, renamed first: half removed, it is no checkpoint

A kill, a full disk or a power cut at any instant leaves leftovers and whole checkpoints, nothing between. A byte that
changes on the disk later is found by the digests before any of the checkpoint is used; then an older one is taken, and
the damaged one is reported. There is no file `latest` that could be wrong: the folder is listed.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hasten.checkpoint import manifest as manifests
from hasten.checkpoint.digests import Digest, write_digested
from hasten.checkpoint.files import make_building_folder, make_folder, names_in, remove_folder, rename_folder, set_aside
from hasten.checkpoint.manifest import PIECES, STATE, Manifest, OfAnotherVersion
from hasten.checkpoint.safetensors_files import write_tensor_files
from hasten.checkpoint.saved_checkpoint import Checkpoint, Loaded, checkpoints_in
from hasten.checkpoint.sharded.collective_save import Led
from hasten.checkpoint.sharded.piece_table import to_json
from hasten.checkpoint.sharded.rank_files import write_part
from hasten.checkpoint.sharded.tensor_slabs import Holding
from hasten.errors import Damaged, StorageFailed

_LEFTOVER = re.compile(r"\.step-\d{1,18}\.tmp-[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """One checkpoint in memory.

    trees: by name, from state_tree.flattened. They become one file, because each file costs a wait for the disk.
    tensors: of all trees.
    """

    step: int
    epoch: int
    reason: str
    best: bool
    world_size: int
    trees: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


class Store:
    """The checkpoints in one folder, which is made with the first of them. One process writes to it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, contents: Contents, threads: int = 1) -> Checkpoint:
        """Write a new checkpoint and force it to the disk.

        threads: that write files, each with a second one for digests.
        Raises StorageFailed, and Misconfigured for a dtype that no file can hold.
        """
        return self._save(contents, lambda building: write_files(building, contents, threads))

    def save_led(self, contents: Contents, held: Holding, save: Led, threads: int = 1) -> Checkpoint:
        """The same for a state that ranks hold in parts; this rank leads, and the others write at the same time.

        held: the parts of this rank.
        Raises as save does, also for what another rank could not write.
        """

        def fill(building: Path) -> dict[str, Digest]:
            save.begin(building, contents.step)
            files = write_files(building, contents, threads)
            found = save.gathered(write_part(building, 0, held, threads))
            files |= found.files
            if found.tensors:
                files[PIECES] = write_digested(building / PIECES, [to_json(found.tensors).encode()])
            return files

        return self._save(contents, fill)

    def found(self) -> list[Checkpoint]:
        """Every checkpoint by its name, the newest first, unverified. Raises StorageFailed."""
        return checkpoints_in(self.folder)

    def newest(self, on_damage: Callable[[Checkpoint, Damaged], None]) -> Loaded | None:
        """The newest verified checkpoint; None where there is none. on_damage: called for each damaged one.

        Raises StorageFailed for one that cannot be read, or that another version of hasten saved: it may be whole, and
        resuming from an older one would lose it.
        """
        for checkpoint in self.found():
            try:
                return checkpoint.read()
            except Damaged as error:
                on_damage(checkpoint, error)
            except OfAnotherVersion as error:
                raise OfAnotherVersion(error.what, where=str(checkpoint.path), fix=error.fix) from error
            except StorageFailed as error:
                fix = f"{error.fix}; or remove this checkpoint to resume from the one before it"
                raise StorageFailed(error.what, where=str(checkpoint.path), fix=fix) from error
        return None

    def remove(self, checkpoint: Checkpoint) -> None:
        """Raises StorageFailed; the checkpoint is then still whole, or a leftover."""
        aside = self._leftover_name(checkpoint.step)
        set_aside(checkpoint.path, aside)
        remove_folder(aside)

    def clean(self) -> None:
        """Remove the leftovers of a killed process. Raises StorageFailed."""
        for name in filter(_LEFTOVER.fullmatch, names_in(self.folder)):
            remove_folder(self.folder / name)

    def _save(self, contents: Contents, fill: Callable[[Path], dict[str, Digest]]) -> Checkpoint:
        make_folder(self.folder)
        step, building = contents.step, self._leftover_name(contents.step)
        attempt = 1 + max((each.attempt for each in self.found() if each.step == step), default=0)
        final = self.folder / (f"step-{step}" + (f".{attempt}" if attempt > 1 else ""))
        try:
            make_building_folder(building)
            write_manifest(building, contents, fill(building))
            rename_folder(building, final)
        except BaseException:
            with suppress(StorageFailed):  # it is a leftover; report the first failure
                remove_folder(building)
            raise
        return Checkpoint(final, step, attempt)

    def _leftover_name(self, step: int) -> Path:
        return self.folder / f".step-{step}.tmp-{secrets.token_hex(4)}"


def write_files(folder: Path, contents: Contents, threads: int) -> dict[str, Digest]:
    """Write tensors and trees into a folder, each file forced to the disk; the digests by file name."""
    files = write_tensor_files(folder, contents.tensors, threads)
    text = json.dumps(dict(contents.trees), allow_nan=False, separators=(",", ":"))
    files[STATE] = write_digested(folder / STATE, [text.encode()])
    return files


def write_manifest(folder: Path, contents: Contents, files: Mapping[str, Digest]) -> None:
    """Write the last file of a checkpoint, which makes the folder one."""
    manifest = Manifest(
        step=contents.step,
        epoch=contents.epoch,
        reason=contents.reason,
        best=contents.best,
        saved_at=time.time(),  # noqa: TID251  nothing depends on it
        world_size=contents.world_size,
        files=files,
    )
    write_digested(folder / manifests.NAME, [manifests.to_json(manifest)])
