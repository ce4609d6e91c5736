"""What a forger can write: a file with a seal that is right, made without the package's own code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def with_seal(fields: Mapping[str, Any]) -> bytes:
    """A seal among the fields gives way to the right one."""
    plain = {name: value for name, value in fields.items() if name != "seal"}
    seal = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return (json.dumps(plain | {"seal": seal}, indent=1, sort_keys=True) + "\n").encode()
