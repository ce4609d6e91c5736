"""What a forger can write: a file with a seal that is right, made without the package's own code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def with_seal(fields: Mapping[str, Any]) -> bytes:
    """A seal among the fields gives way to the right one."""
    plain = {name: value for name, value in fields.items() if name != "seal"}
    seal = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return (json.dumps(plain | {"seal": seal}, indent=1, sort_keys=True) + "\n").encode()


def as_of_version(checkpoint: Path, schema: int, version: str | None) -> None:
    """Give a checkpoint the manifest of another version of hasten. version: None where that did not write it."""
    path = checkpoint / "manifest.json"
    fields = json.loads(path.read_bytes()) | {"schema": schema, "hasten": version}
    path.write_bytes(with_seal({name: each for name, each in fields.items() if each is not None}))
