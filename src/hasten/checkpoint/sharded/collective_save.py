"""One checkpoint of several ranks: each writes its parts, and the leader completes the checkpoint.

    leader   make the folder ─ send its path ─► write, force, read back ─► gather ─► pieces.json, manifest.json, rename
    others                   receive the path ─► write, force, read back ─► send the digests

A rank sends its digests when its files are on the disk and were read back, or sends its error. The manifest is written
after the last of them, so a failure of one rank fails the save of all, and the other files are leftovers. Every rank
takes part in both messages whatever fails: a rank that skipped one would block the others.
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
from hasten.checkpoint.sharded.tensor_slabs import Holding
from hasten.errors import Damaged, StorageFailed

_NOWHERE = ""


class Exchange(Protocol):
    """Messages between the ranks' saving threads, in a group of their own. All ranks call each method together.

    A message that does not arrive in a limited time raises an error.
    """

    def from_leader(self, text: str) -> str:
        """The leader's text, on all ranks."""
        ...

    def to_leader(self, text: str) -> list[str]:
        """Each rank's text, by rank, on the leader; nothing on others."""
        ...


class Led:
    """A save of all ranks, as the leader sees it."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._left = exchange, 2  # messages that the others still wait for
        self._folder = ""

    def begin(self, folder: Path, step: int) -> None:
        """Let the others write their parts of this step into the folder."""
        self._left, self._folder = 0, str(folder)  # after a failed message, no further one can succeed
        self._exchange.from_leader(json.dumps([self._folder, step]))
        self._left = 1

    def gathered(self, own: Part) -> Part:
        """What all ranks have written; own: the leader's part. Waits for the others.

        Raises StorageFailed where one of them failed, and where parts of a tensor are missing.
        """
        self._left = 0
        parts = [own, *(_part(text, rank) for rank, text in enumerate(self._exchange.to_leader("")) if rank > 0)]
        files = {name: digest for part in parts for name, digest in part.files.items()}
        try:
            return Part(files, put_together(part.tensors for part in parts))
        except Damaged as error:
            what = f"the ranks together do not have every element of every tensor: {error.what}"
            raise StorageFailed(what, where=self._folder, fix="train with a plan without sharding") from error

    def give_up(self) -> None:
        """Send the messages that the others still wait for."""
        left, self._left = self._left, 0
        if left == 2:
            self._exchange.from_leader(_NOWHERE)
        elif left == 1:
            self._exchange.to_leader("")


@contextmanager
def led(exchange: Exchange) -> Iterator[Led]:
    """A save that the others are waiting for; they are released whatever fails."""
    save = Led(exchange)
    try:
        yield save
    except BaseException:
        save.give_up()
        raise


def follow(exchange: Exchange, rank: int, step: int, held: Holding, threads: int) -> None:
    """Take part in a save on a rank that does not lead. held: of this step. The leader reports a failure to write."""
    received = exchange.from_leader("")
    if received == _NOWHERE:
        return
    folder, wanted = json.loads(received)
    try:
        if wanted != step:  # never a checkpoint of two steps
            raise StorageFailed(f"it holds step {step:,}, not {wanted:,}", where=folder)
        part = write_part(Path(folder), rank, held, threads)
    except BaseException as error:
        known = error if isinstance(error, StorageFailed) else StorageFailed(f"{type(error).__name__}: {error}")
        exchange.to_leader(json.dumps({"what": known.what, "where": known.where or folder, "fix": known.fix}))
        if known is not error:
            raise
    else:
        files = {name: [digest.bytes, digest.sha256] for name, digest in part.files.items()}
        exchange.to_leader(json.dumps({"files": files, "tensors": to_json(part.tensors)}))


def _part(text: str, rank: int) -> Part:
    """What a rank has sent. Raises StorageFailed where it could not write."""
    sent: dict[str, Any] = json.loads(text)
    if "what" in sent:
        raise StorageFailed(f"rank {rank}: {sent['what']}", where=sent["where"], fix=sent["fix"])
    files = {name: Digest(*each) for name, each in sent["files"].items()}
    return Part(files, from_json(sent["tensors"].encode()))
