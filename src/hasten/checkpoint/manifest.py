"""manifest.json: a checkpoint's files, each with size and digest, under a seal.

It is the last file that is written, so a folder without one is no checkpoint. The seal finds any changed byte; it can
be forged, so every field is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version

from hasten.checkpoint.digests import Digest
from hasten.checkpoint.sealed_json import sealed, unsealed
from hasten.errors import Damaged, StorageFailed
from hasten.facts.formatting import printable
from hasten.facts.record_reading import WrongValue, read_record

NAME = "manifest.json"
STATE = "state.json"
TENSORS = "tensors.safetensors"  # the first file of whole tensors; tensors-2.safetensors is the next
PIECES = "pieces.json"  # where the pieces of tensors lie that several ranks saved in parts
SCHEMA = 3  # of the manifest and of the state beside it
LARGEST_BYTES = 1 << 20

_OF_0_1_0 = (1, 2)  # schemas, which did not name the version
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_HEX = re.compile(r"[0-9a-f]{64}")


class OfAnotherVersion(StorageFailed):
    """A checkpoint of another version of hasten: it may be whole, and cannot be read here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """
    step: optimizer steps, attempted ones, that the run had taken; the folder is named after it.
    epoch: the epoch it was in.
    reason: why it was saved, in words.
    best: whether the evaluation at this step was the best so far, by Job.keep, else by Job.stop.
    saved_at: seconds since 1970 by the system's clock, to show an age; nothing depends on it.
    world_size: how many processes trained.
    files: name -> digest.
    hasten: the version that saved it.
    """

    step: int
    epoch: int
    reason: str
    best: bool
    saved_at: float
    world_size: int
    files: Mapping[str, Digest]
    hasten: str = version("hasten")

    @property
    def bytes(self) -> int:
        """Of all files but this one."""
        return sum(each.bytes for each in self.files.values())


def holds_tensors(name: str) -> bool:
    """Whether a checkpoint's file of this name holds whole tensors."""
    return name.startswith("tensors") and name.endswith(".safetensors")


def holds_parts(name: str) -> bool:
    """Whether a checkpoint's file of this name holds a rank's parts of tensors."""
    return name.startswith("parts-") and name.endswith(".safetensors")


def to_json(manifest: Manifest) -> bytes:
    """Raises Damaged for what from_json would refuse: nothing is saved that could not be read."""
    content = sealed(asdict(manifest) | {"schema": SCHEMA})
    from_json(content)
    return content


def from_json(content: bytes) -> Manifest:
    """Raises Damaged, saying what is wrong; OfAnotherVersion for a manifest of another version of hasten."""
    if len(content) > LARGEST_BYTES:
        raise Damaged(f"{NAME} is larger than {LARGEST_BYTES:,} bytes")
    fields = unsealed(content, NAME)
    schema = fields.pop("schema", None)
    if type(schema) is not int or schema < 1:
        raise Damaged(f"{NAME} has an unknown schema: {str(schema)[:40]}")
    if schema != SCHEMA:
        by = "0.1.0" if schema in _OF_0_1_0 else printable(str(fields.get("hasten")))[:40]
        what = f"the checkpoint was saved by hasten {by}, and this version cannot read it"
        raise OfAnotherVersion(what, fix=f"finish this run with hasten {by}, or start a new run in another folder")
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
            raise Damaged(f"{NAME}: the digest of {name} is invalid")
    return found
