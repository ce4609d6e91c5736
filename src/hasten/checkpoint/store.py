"""The checkpoints of one run: saved whole or not at all, believed only after every byte was looked at.

    .step-120.tmp-1f3a07c2/  files, each forced to the disk, then the manifest, then the folder
    step-120/                the same, renamed; then the parent folder is forced to the disk
    step-120.2/              the same step, saved again by a run that had to go back: a name is never taken twice
    .step-60.tmp-9b02e4d1/   an old one about to be removed, renamed first: half removed, it is nobody's checkpoint

A kill, a full disk or a power cut at any instant leaves leftovers and whole checkpoints, nothing between. What no
protocol prevents, a byte that changes on the disk later, is found by the digests before any of it is used; an older
checkpoint is taken then, and the broken one is named. Nothing is taken from a pointer such as a file `latest`: what is
there is looked at.
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
from hasten.checkpoint.manifest import Manifest
from hasten.checkpoint.safetensors_files import write_tensor_files
from hasten.checkpoint.saved_checkpoint import STATE, Checkpoint, Loaded, checkpoints_in
from hasten.checkpoint.sharded import piece_table
from hasten.checkpoint.sharded.collective_save import Led
from hasten.checkpoint.sharded.rank_files import write_part
from hasten.checkpoint.sharded.slabs import Holding
from hasten.errors import Damaged, StorageFailed

_LEFTOVER = re.compile(r"\.step-\d{1,18}\.tmp-[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """One checkpoint in memory.

    trees: by name, what state.flattened gave, or plain values; together they are one file, as each costs a wait for
        the disk.
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
        """Write a checkpoint and force it to the disk, beside those that are there.

        threads: that work on it, each with a second one for its digests.
        Raises StorageFailed, and Misconfigured for a tensor of a type that no file can hold; nothing of it stays then.
        """
        return self._save(contents.step, lambda building: self._fill(building, contents, threads))

    def save_led(self, contents: Contents, held: Holding, save: Led, threads: int = 1) -> Checkpoint:
        """The same, of a state that ranks hold in parts: `held` are those of this one, which leads; the others write
        theirs at the same time. Raises as save does, also for what another rank could not write."""

        def fill(building: Path) -> None:
            save.begin(building, contents.step)
            files = self._write(building, contents, threads)
            found = save.gathered(write_part(building, 0, held, threads))
            files |= found.files
            if found.tensors:
                files[piece_table.NAME] = write_digested(
                    building / piece_table.NAME, [piece_table.to_json(found.tensors).encode()]
                )
            self._seal(building, contents, files)

        return self._save(contents.step, fill)

    def _save(self, step: int, fill: Callable[[Path], None]) -> Checkpoint:
        make_folder(self.folder)
        building = self._leftover_name(step)
        attempt = 1 + max((each.attempt for each in self.found() if each.step == step), default=0)
        final = self.folder / (f"step-{step}" + (f".{attempt}" if attempt > 1 else ""))
        try:
            make_building_folder(building)
            fill(building)
            rename_folder(building, final)
        except BaseException:
            with suppress(StorageFailed):  # it is a leftover, and the first failure is the one to tell
                remove_folder(building)
            raise
        return Checkpoint(final, step, attempt)

    def found(self) -> list[Checkpoint]:
        """Every checkpoint by its name, the newest first, unverified. Raises StorageFailed."""
        return checkpoints_in(self.folder)

    def newest(self, tell: Callable[[Checkpoint, Damaged], None]) -> Loaded | None:
        """The newest checkpoint that is whole, read; None where none is. `tell` is called for each that is damaged.

        Raises StorageFailed for one that cannot be read, or not by this hasten: it may be whole, and to go on from an
        older one would throw it away.
        """
        for checkpoint in self.found():
            try:
                return checkpoint.read()
            except Damaged as error:
                tell(checkpoint, error)
            except StorageFailed as error:
                fix = f"{error.fix}; or remove this checkpoint, to go on from the one before"
                raise StorageFailed(error.what, where=str(checkpoint.path), fix=fix) from error
        return None

    def remove(self, checkpoint: Checkpoint) -> None:
        """Raises StorageFailed; what is left then is no checkpoint any more, or still a whole one."""
        aside = self._leftover_name(checkpoint.step)
        set_aside(checkpoint.path, aside)
        remove_folder(aside)

    def clean(self) -> None:
        """Remove what a killed process left behind. Raises StorageFailed."""
        for name in filter(_LEFTOVER.fullmatch, names_in(self.folder)):
            remove_folder(self.folder / name)

    def _leftover_name(self, step: int) -> Path:
        return self.folder / f".step-{step}.tmp-{secrets.token_hex(4)}"

    def _fill(self, folder: Path, contents: Contents, threads: int) -> None:
        self._seal(folder, contents, self._write(folder, contents, threads))

    def _write(self, folder: Path, contents: Contents, threads: int) -> dict[str, Digest]:
        files = write_tensor_files(folder, contents.tensors, threads)
        text = json.dumps(dict(contents.trees), allow_nan=False, separators=(",", ":"))
        files[STATE] = write_digested(folder / STATE, [text.encode()])
        return files

    def _seal(self, folder: Path, contents: Contents, files: Mapping[str, Digest]) -> None:
        manifest = Manifest(
            step=contents.step,
            epoch=contents.epoch,
            reason=contents.reason,
            best=contents.best,
            saved_at=time.time(),
            world_size=contents.world_size,
            files=files,
        )
        write_digested(folder / manifests.NAME, [manifests.to_json(manifest)])
