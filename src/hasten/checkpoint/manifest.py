"""manifest.json: a checkpoint's files, each with size and digest, under a seal.

It is the last file that is written, so a folder without one is no checkpoint. The seal finds any changed byte; it can
be forged, so every field is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from hasten.checkpoint.digests import Digest
from hasten.checkpoint.sealed_json import sealed, unsealed
from hasten.errors import Damaged, StorageFailed
from hasten.facts.record_reading import WrongValue, read_record

NAME = "manifest.json"
STATE = "state.json"
TENSORS = "tensors.safetensors"  # the first file of whole tensors; tensors-2.safetensors is the next
PIECES = "pieces.json"  # where the pieces of tensors lie that several ranks saved in parts
SCHEMA = 1
SCHEMA_IN_PIECES = 2  # with tensors in pieces; a hasten that knows schema 1 only would report a damaged checkpoint
LARGEST_BYTES = 1 << 20

_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_HEX = re.compile(r"[0-9a-f]{64}")
_HOLDS_TENSORS = re.compile(r"tensors(-[0-9]{1,6})?\.safetensors")
_HOLDS_PARTS = re.compile(r"parts-[0-9]{4,9}(-[0-9]{1,6})?\.safetensors")


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """
    step: optimizer steps, attempted ones, that the run had taken; the folder is named after it.
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
        """Of all files but this one."""
        return sum(each.bytes for each in self.files.values())


def holds_tensors(name: str) -> bool:
    """Whether a checkpoint's file of this name holds whole tensors."""
    return _HOLDS_TENSORS.fullmatch(name) is not None


def holds_parts(name: str) -> bool:
    """Whether a checkpoint's file of this name holds a rank's parts of tensors."""
    return _HOLDS_PARTS.fullmatch(name) is not None


def to_json(manifest: Manifest) -> bytes:
    """Raises Damaged for what from_json would refuse: nothing is saved that could not be read."""
    schema = SCHEMA_IN_PIECES if PIECES in manifest.files else SCHEMA
    content = sealed(asdict(manifest) | {"schema": schema})
    from_json(content)
    return content


def from_json(content: bytes) -> Manifest:
    """Raises Damaged, saying what is wrong; StorageFailed for a manifest of a later hasten."""
    if len(content) > LARGEST_BYTES:
        raise Damaged(f"{NAME} is larger than {LARGEST_BYTES:,} bytes")
    fields = unsealed(content, NAME)
    schema = fields.pop("schema", None)
    if type(schema) is int and schema > SCHEMA_IN_PIECES:
        what = f"{NAME} was written by a newer hasten: its schema is {schema}, and {SCHEMA_IN_PIECES} is known here"
        raise StorageFailed(what, fix="resume with the hasten that saved it")
    if type(schema) is not int or schema not in (SCHEMA, SCHEMA_IN_PIECES):
        raise Damaged(f"{NAME} has no schema that is known here: {str(schema)[:40]}")
    try:
        found: Manifest = read_record(Manifest, fields)
    except WrongValue as error:
        raise Damaged(f"{NAME}: {error.what}") from error
    for name in ("step", "epoch", "world_size", "saved_at"):
        if getattr(found, name) < 0:
            raise Damaged(f"{NAME}: {name} is below 0")
    for name, digest in found.files.items():
        if not _FILE_NAME.fullmatch(name):  # it is joined to a folder's path, and must not lead out of it
            raise Damaged(f"{NAME} lists a file with the name {name[:200]!r}")
        if digest.bytes < 0 or not _HEX.fullmatch(digest.sha256):
            raise Damaged(f"{NAME}: the digest of {name} makes no sense")
    return found
