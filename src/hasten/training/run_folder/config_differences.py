"""What differs between two values of a run's configuration, in words; and the digest of the job's source files.

Settings are compared by the names that both have, so that a new option of another torch version is no change. A model
is a list of modules, each with its name, its class and its settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from hasten.data.cache.cache_key import text_of_module
from hasten.facts.job import Job, Schedule
from hasten.training.setup.settings import is_library

_CHOICE = {"value", "options", "preserves"}
_MOST_SHOWN = 3
DATA = "data"  # the first word of a digest of data
_DIGESTS = {
    "code": "the job's file has changed",
    "shapes": "different names or shapes of tensors",
    DATA: "has other values",
}


def differs(before: Any, now: Any) -> bool:
    before, now = _settings_of(before), _settings_of(now)
    if _are_settings(before) and _are_settings(now):
        return bool(_different_names(before, now))
    return before != now


def difference(before: Any, now: Any) -> str:
    """Old value → new value; of settings, the first ones that differ."""
    before, now = _settings_of(before), _settings_of(now)
    if _are_settings(before) and _are_settings(now):
        names = _different_names(before, now)
        texts = [f"{name} {difference(before[name], now[name])}" for name in names[:_MOST_SHOWN]]
        return ", ".join(texts) + (f", and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else "")
    for kind, words in _DIGESTS.items():
        if _is_digest(before, kind) and _is_digest(now, kind):
            return words
    return f"{_shown(before)} → {_shown(now)}"


def _settings_of(value: Any) -> Any:
    """Of a model, one mapping; any other value unchanged."""
    if not isinstance(value, list) or not value or not all(map(_is_module, value)):
        return value
    found: dict[str, Any] = {"modules": len(value)}
    for number, (name, kind, settings) in enumerate(value):
        found[f"module {number}:"] = f"{kind} '{name}'"
        found |= {f"{kind} '{name}' {key}": each for key, each in settings.items()}
    return found


def _is_module(value: Any) -> bool:
    return isinstance(value, list) and [*map(type, value)] == [str, str, dict]


def _are_settings(value: Any) -> bool:
    return isinstance(value, Mapping) and "kind" not in value and not set(value) >= _CHOICE


def _is_digest(value: Any, kind: str) -> bool:
    if isinstance(value, list):
        return all(_is_digest(each, kind) for each in value)
    return isinstance(value, str) and value.startswith(f"{kind} ")


def _different_names(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in before if name in now and before[name] != now[name]]


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping) and set(value) >= _CHOICE:
        options = "".join(f", {name}={_shown(each)}" for name, each in value["options"].items())
        return f"{_shown(value['value'])}{options}"
    if isinstance(value, Mapping):
        named = ", ".join(f"{name}={_shown(each)}" for name, each in value.items() if name != "kind")
        return f"{value['kind']}({named})" if "kind" in value else named
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    return str(value)


def code_digest(job: Job) -> str:
    """16 hexadecimal digits. Code of torch and hasten, and modules that the files import, are not part of it."""
    schedule = job.schedule.build if isinstance(job.schedule, Schedule) else job.schedule
    given = [job.model, job.loss, job.eval_loss, job.optimizer, job.parameters, job.collate, schedule]
    modules = {_module_of(each) for each in given if each is not None} - {""}
    texts = sorted(f"{name} {text_of_module(name)}" for name in modules)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _module_of(function: Any) -> str:
    """Empty for torch's and hasten's."""
    while isinstance(function, partial):
        function = function.func
    owner = function if hasattr(function, "__qualname__") else type(function)
    return "" if is_library(owner) else str(owner.__module__)
