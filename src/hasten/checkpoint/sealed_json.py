"""A JSON object with the digest of all its other fields in it, its seal.

The file is read as untrusted text. A seal finds accidental changes; it can be forged, so the reader checks each field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from hasten.errors import Damaged

_SEAL = "seal"


def sealed(fields: Mapping[str, Any]) -> bytes:
    """The fields as JSON with a seal. Equal fields always give equal bytes."""
    return (json.dumps({**fields, _SEAL: _seal_of(fields)}, indent=1, sort_keys=True) + "\n").encode()


def unsealed(content: bytes, name: str) -> dict[str, Any]:
    """The fields that sealed() wrote into the file of this name. Raises Damaged for anything else."""
    found = json_object(content, name)
    found.pop(_SEAL, None)
    with suppress(RecursionError):  # nested too deeply to be ours
        # Sealing again is the strictest check: it leaves no duplicate key, no other spacing and no other seal.
        if sealed(found) == content:
            return found
    raise Damaged(f"{name} was changed after it was written: its seal does not match")


def json_object(content: bytes, name: str) -> dict[str, Any]:
    """The JSON object in the file of this name. Raises Damaged where it is no JSON, or no object."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{name} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise Damaged(f"{name} is not a JSON object")
    return cast("dict[str, Any]", found)


def _seal_of(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
