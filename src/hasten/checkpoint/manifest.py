"""What makes a folder a checkpoint: the list of its files, each with size and digest, sealed by a digest of its own.

manifest.json is the last file that is written. It is read as untrusted text: a byte that was changed anywhere in it
breaks the seal, and every field is looked at before it is believed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, cast

from hasten.checkpoint.digests import Digest
from hasten.errors import Damaged, StorageFailed

NAME = "manifest.json"
SCHEMA = 1
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
    content = _written(manifest)
    from_json(content)
    return content


def from_json(content: bytes) -> Manifest:
    """Raises Damaged, saying what is wrong, for anything that to_json never wrote, but StorageFailed for what a later
    hasten wrote."""
    if len(content) > LARGEST_BYTES:
        raise Damaged(f"{NAME} is larger than {LARGEST_BYTES:,} bytes")
    fields = json_object(content, NAME)
    _check_not_newer(fields)
    found = _checked(fields)
    # To write it again is the strictest way of reading: no second key of one name, no space, no other seal is left.
    if _written(found) != content:
        raise Damaged(f"{NAME} was changed after it was written: its seal is broken")
    return found


def json_object(content: bytes, name: str) -> dict[str, Any]:
    """What a checkpoint's file of this name holds. Raises Damaged where that is no JSON, or no object."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Damaged(f"{name} holds no object")
    return cast("dict[str, Any]", found)


def _written(manifest: Manifest) -> bytes:
    files = {name: asdict(each) for name, each in manifest.files.items()}
    fields = {name: getattr(manifest, name) for name in _KINDS} | {"files": files, "schema": SCHEMA}
    return (json.dumps(fields | {"seal": _seal_of(fields)}, indent=1, sort_keys=True) + "\n").encode()


def _seal_of(fields: Mapping[str, Any]) -> str:
    """Of all others, in every schema: so that what a later hasten wrote is told from what was changed."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _check_not_newer(fields: Mapping[str, Any]) -> None:
    schema = fields.get("schema")
    if type(schema) is not int or schema <= SCHEMA:
        return
    with suppress(RecursionError):  # nested so deeply by nobody who saves
        if fields.get("seal") == _seal_of({name: each for name, each in fields.items() if name != "seal"}):
            what = f"{NAME} was written by a newer hasten: it has a schema of {schema}, and {SCHEMA} is known here"
            raise StorageFailed(what, fix="go on with the hasten that saved it")


def _checked(fields: dict[str, Any]) -> Manifest:
    """A seal can be forged, so a field is believed for its form, never for the seal."""
    schema = fields.pop("schema", None)
    if type(schema) is not int or schema != SCHEMA:
        known = schema if isinstance(schema, int) else "another kind"
        raise Damaged(f"{NAME} has a schema of {known}, and {SCHEMA} is known here")
    odd = fields.keys() ^ {*_KINDS, "files", "seal"}
    if odd:
        raise Damaged(f"{NAME} has other fields than it should: {', '.join(sorted(odd))[:200]}")
    del fields["seal"]
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
