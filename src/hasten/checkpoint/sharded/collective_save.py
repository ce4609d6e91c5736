"""One checkpoint of several ranks: each writes the parts that it holds, and the leader makes a checkpoint of them.

    leader     make the folder ─ say where ─► write, force, read back ─► hear all ─► pieces.json, manifest.json, rename
    another                      hear where ─► write, force, read back ─► say what it has written

A rank says what it has written when that is on the disk and was read back, or why it is not, and the manifest comes
after the last of them. So what fails on one rank fails for all, and what the others have written is a leftover. Every
rank says and hears equally often whatever fails: an order that one of them left would hold all up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from hasten.checkpoint.digests import Digest
from hasten.checkpoint.sharded.piece_table import from_json, put_together, to_json
from hasten.checkpoint.sharded.rank_files import Part, write_part
from hasten.checkpoint.sharded.slabs import Holding
from hasten.errors import Damaged, StorageFailed

_NOWHERE = ""


class Together(Protocol):
    """How ranks talk about what they save, apart from all that they train with. All call it alike; what is waited for
    comes within a limited time, or an error."""

    def from_leader(self, text: str) -> str:
        """What the leader says, on all ranks."""
        ...

    def to_leader(self, text: str) -> list[str]:
        """What each rank says, by rank, on the leader; nothing on others."""
        ...


class Led:
    """A save of all ranks, as the leader has it."""

    def __init__(self, together: Together) -> None:
        self._together, self._left = together, 2  # how often all are still to meet
        self._folder = ""

    def begin(self, folder: Path, step: int) -> None:
        """Let the others write what they have of this step into the folder."""
        self._left, self._folder = 0, str(folder)  # where they cannot meet now, they never will
        self._together.from_leader(json.dumps([self._folder, step]))
        self._left = 1

    def gathered(self, own: Part) -> Part:
        """What all have written, of which `own` is the leader's. Waits for the others.

        Raises StorageFailed where one of them could not, and where they have not the whole of a tensor together.
        """
        self._left = 0
        parts = [own, *(_part(text, rank) for rank, text in enumerate(self._together.to_leader("")) if rank > 0)]
        files = {name: digest for part in parts for name, digest in part.files.items()}
        try:
            return Part(files, put_together(part.tensors for part in parts))
        except Damaged as error:
            what = f"the ranks have not the whole of each tensor: {error.what}"
            raise StorageFailed(what, where=self._folder, fix="save it whole, by a plan without parts") from error

    def give_up(self) -> None:
        """Meet as often as the others still expect it."""
        left, self._left = self._left, 0
        if left == 2:
            self._together.from_leader(_NOWHERE)
        elif left == 1:
            self._together.to_leader("")


@contextmanager
def led(together: Together) -> Iterator[Led]:
    """A save that the others are waiting for, whatever becomes of it."""
    save = Led(together)
    try:
        yield save
    except BaseException:
        save.give_up()
        raise


def follow(together: Together, rank: int, step: int, held: Holding, threads: int) -> None:
    """Do what a rank does that does not lead. held: of this step. Its failure to write is told by the leader."""
    said = together.from_leader("")
    if said == _NOWHERE:
        return
    folder, wanted = json.loads(said)
    try:
        if wanted != step:  # never a checkpoint of two steps
            raise StorageFailed(f"it has what it saves of step {step:,}, not of {wanted:,}", where=folder)
        part = write_part(Path(folder), rank, held, threads)
    except StorageFailed as error:
        together.to_leader(json.dumps({"what": error.what, "where": error.where, "fix": error.fix}))
    except BaseException as error:
        together.to_leader(json.dumps({"what": f"{type(error).__name__}: {error}", "where": folder, "fix": ""}))
        raise
    else:
        files = {name: [digest.bytes, digest.sha256] for name, digest in part.files.items()}
        together.to_leader(json.dumps({"files": files, "tensors": to_json(part.tensors)}))


def _part(text: str, rank: int) -> Part:
    """What a rank has said. Raises StorageFailed where it could not write."""
    said: dict[str, Any] = json.loads(text)
    if "what" in said:
        raise StorageFailed(f"rank {rank}: {said['what']}", where=said["where"], fix=said["fix"])
    files = {name: Digest(size, sha256) for name, (size, sha256) in said["files"].items()}
    return Part(files, from_json(said["tensors"].encode()))
