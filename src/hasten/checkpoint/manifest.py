"""What makes a folder a checkpoint: the list of its files, each with size and digest, sealed by a digest of its own.

manifest.json is the last file that is written. A byte that was changed anywhere in it breaks the seal; and as a seal
can be forged, every field is looked at before it is believed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from hasten.checkpoint.digests import Digest
from hasten.checkpoint.sealed_json import sealed, unsealed
from hasten.checkpoint.sharded import piece_table
from hasten.errors import Damaged, StorageFailed

NAME = "manifest.json"
SCHEMA = 1
SCHEMA_IN_PIECES = 2  # of a checkpoint with tensors in pieces, which an older hasten would take for a damaged one
LARGEST_BYTES = 1 << 20

_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_HEX = re.compile(r"[0-9a-f]{64}")
_KINDS = {"step": int, "epoch": int, "reason": str, "best": bool, "saved_at": float, "world_size": int}


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """
    step: optimizer steps, attempted ones, that the run had taken; it is the folder's name too.
    epoch: the epoch it was in.
    reason: why it was saved, in words.
    best: whether the evaluation at this step was the best so far, by the job's stopping rule.
    saved_at: seconds since 1970 by the system's clock, to show an age; nothing depends on it.
    world_size: how many processes trained.
    files: name -> digest.
    """

    step: int
    epoch: int
    reason: str
    best: bool
    saved_at: float
    world_size: int
    files: Mapping[str, Digest]

    @property
    def bytes(self) -> int:
        """Of all files, without this one."""
        return sum(each.bytes for each in self.files.values())


def to_json(manifest: Manifest) -> bytes:
    """Raises Damaged for what from_json would refuse: nothing is saved that could not be read."""
    files = {name: asdict(each) for name, each in manifest.files.items()}
    schema = SCHEMA_IN_PIECES if piece_table.NAME in files else SCHEMA
    content = sealed({name: getattr(manifest, name) for name in _KINDS} | {"files": files, "schema": schema})
    from_json(content)
    return content


def from_json(content: bytes) -> Manifest:
    """Raises Damaged, saying what is wrong, for anything that to_json never wrote, but StorageFailed for what a later
    hasten wrote."""
    if len(content) > LARGEST_BYTES:
        raise Damaged(f"{NAME} is larger than {LARGEST_BYTES:,} bytes")
    return _checked(unsealed(content, NAME))


def _checked(fields: dict[str, Any]) -> Manifest:
    schema = fields.pop("schema", None)
    if type(schema) is int and schema > SCHEMA_IN_PIECES:
        what = (
            f"{NAME} was written by a newer hasten: it has a schema of {schema}, and {SCHEMA_IN_PIECES} is known here"
        )
        raise StorageFailed(what, fix="go on with the hasten that saved it")
    if type(schema) is not int or schema not in (SCHEMA, SCHEMA_IN_PIECES):
        known = schema if isinstance(schema, int) else "another kind"
        raise Damaged(f"{NAME} has a schema of {known}, and {SCHEMA_IN_PIECES} is known here")
    odd = fields.keys() ^ {*_KINDS, "files"}
    if odd:
        raise Damaged(f"{NAME} has other fields than it should: {', '.join(sorted(odd))[:200]}")
    for name, kind in _KINDS.items():
        if type(fields[name]) is not kind or (kind in (int, float) and not 0 <= fields[name] < math.inf):
            raise Damaged(f"{NAME}: {name} makes no sense")
    files = fields.pop("files")
    if not isinstance(files, dict):
        raise Damaged(f"{NAME}: files is no object")
    listed = cast("dict[str, Any]", files)
    return Manifest(**fields, files={name: _digest(name, each) for name, each in listed.items()})


def _digest(name: str, fields: Any) -> Digest:
    """Names are joined to a folder's path, so none may lead out of it."""
    if not _FILE_NAME.fullmatch(name):
        raise Damaged(f"{NAME} lists a file with the name {name[:200]!r}")
    match fields:
        case {"bytes": int(size), "sha256": str(sha256)} if (
            len(fields) == 2 and type(size) is int and size >= 0 and _HEX.fullmatch(sha256)
        ):
            return Digest(size, sha256)
    raise Damaged(f"{NAME}: the digest of {name} makes no sense")
