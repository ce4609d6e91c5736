"""JSON that says whether it is what was written: one object of a file, with the digest of all its other fields.

It is read as untrusted text. A seal finds what was changed by accident; it can be forged, so whoever reads an object
looks at each of its fields before believing it.
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
    """The one way in which an object of these fields is written, whatever its schema: so what a later hasten wrote is
    told from what was changed."""
    return (json.dumps({**fields, _SEAL: _seal_of(fields)}, indent=1, sort_keys=True) + "\n").encode()


def unsealed(content: bytes, name: str) -> dict[str, Any]:
    """The fields that sealed() wrote, in a file of this name. Raises Damaged for anything that it never wrote."""
    found = json_object(content, name)
    found.pop(_SEAL, None)
    with suppress(RecursionError):  # nested so deeply by nobody who seals
        # To write it again is the strictest way of reading: no second key of one name, no space, no other seal is left.
        if sealed(found) == content:
            return found
    raise Damaged(f"{name} was changed after it was written: its seal is broken")


def json_object(content: bytes, name: str) -> dict[str, Any]:
    """What a file of this name holds. Raises Damaged where that is no JSON, or no object."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Damaged(f"{name} holds no object")
    return cast("dict[str, Any]", found)


def _seal_of(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
