"""The key of a search: a digest of all that a trial's result depends on, as far as it can be told.

A search that finds its own key in an earlier file of trials goes on from it, and believes every trial in there. So
whatever may change a result changes the key: the code that runs (sources.py), the shapes of model and data, the length
of the run, the machine, and the versions. What nobody can tell cheaply is left out: the values in the data, and the
versions of other libraries.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from hasten.facts.plan import ProvenOn

COUNTED = ("fingerprint", "proven_on", "machine", "total_steps", "total_epochs", "evaluations", "sources")


def key_of(told: Mapping[str, Any], environment: Mapping[str, str], *, busy: bool = False) -> str:
    """told: what an arm with the plain job answers to "survey". busy: whether trials were measured however much other
    programs used the processor."""
    digest = hashlib.sha256()
    for part in (*(told[name] for name in COUNTED), dict(environment), *(["busy"] if busy else [])):
        digest.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]


def environment_of(proven_on: ProvenOn) -> dict[str, str]:
    """Name -> version of what everything runs on."""
    return {"hasten": version("hasten"), "python": platform.python_version(), "torch": proven_on.torch}
