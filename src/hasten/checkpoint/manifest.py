"""What makes a folder a checkpoint: the list of its files, each with size and digest, sealed by a digest of its own.

manifest.json is the last file that is written. It is read as untrusted text: a byte that was changed anywhere in it
breaks the seal, and every field is looked at before it is believed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from hasten.checkpoint.digests import Digest
from hasten.errors import StorageFailed

NAME = "manifest.json"
SCHEMA = 1
LARGEST_BYTES = 1 << 20

_OPEN_SEAL = "0" * 64
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_HEX = re.compile(r"[0-9a-f]{64}")


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
    fields = asdict(manifest) | {"files": {name: asdict(each) for name, each in manifest.files.items()}}
    text = json.dumps({"schema": SCHEMA, "seal": _OPEN_SEAL} | fields, indent=1, sort_keys=True) + "\n"
    return text.replace(_OPEN_SEAL, hashlib.sha256(text.encode()).hexdigest(), 1).encode()


def from_json(content: bytes) -> Manifest:
    """Raises StorageFailed, saying what is wrong, for anything that to_json never wrote."""
    if len(content) > LARGEST_BYTES:
        raise StorageFailed(f"{NAME} is larger than {LARGEST_BYTES:,} bytes")
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StorageFailed(f"{NAME} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise StorageFailed(f"{NAME} holds no object")
    fields = cast("dict[str, Any]", fields)
    seal = fields.get("seal")
    if not isinstance(seal, str) or not _HEX.fullmatch(seal):
        raise StorageFailed(f"{NAME} has no seal")
    if hashlib.sha256(content.replace(seal.encode(), _OPEN_SEAL.encode(), 1)).hexdigest() != seal:
        raise StorageFailed(f"{NAME} was changed after it was written: its seal is broken")
    return _checked(fields)


def _checked(fields: dict[str, Any]) -> Manifest:
    """A seal can be forged, so a field is believed for its form, never for the seal."""
    schema = fields.pop("schema", None)
    if schema != SCHEMA:
        raise StorageFailed(f"{NAME} has the schema {schema!r}, and {SCHEMA} is known here")
    del fields["seal"]
    kinds = {"step": int, "epoch": int, "reason": str, "best": bool, "saved_at": float, "world_size": int}
    if fields.keys() != {*kinds, "files"}:
        odd = sorted(fields.keys() ^ {*kinds, "files"})
        raise StorageFailed(f"{NAME} has other fields than it should: {', '.join(odd)}")
    for name, kind in kinds.items():
        if type(fields[name]) is not kind:
            raise StorageFailed(f"{NAME}: {name} is {fields[name]!r}")
    files = fields.pop("files")
    if not isinstance(files, dict):
        raise StorageFailed(f"{NAME}: files is no object")
    listed = cast("dict[str, Any]", files)
    return Manifest(**fields, files={name: _digest(name, each) for name, each in listed.items()})


def _digest(name: str, fields: Any) -> Digest:
    """Names are joined to a folder's path, so none may lead out of it."""
    if not _FILE_NAME.fullmatch(name):
        raise StorageFailed(f"{NAME} lists a file with the name {name!r}")
    match fields:
        case {"bytes": int(size), "sha256": str(sha256)} if len(fields) == 2 and size >= 0 and _HEX.fullmatch(sha256):
            return Digest(size, sha256)
    raise StorageFailed(f"{NAME}: the digest of {name} makes no sense")
