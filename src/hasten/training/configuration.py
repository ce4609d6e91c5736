"""What a run was configured with, as a checkpoint keeps it, and what it means to resume with something else.

A change is of one of three kinds. SAFE ones cannot change what is trained: how often to log, where data is read. DRIFT
is the ground that a run stands on, such as torch's version: the run goes on as well as it can, and is told that it may
differ in the last bits. RISKY is all else: it trains something else from here on, so it needs to be allowed by name.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import torch

from hasten.errors import Misconfigured
from hasten.facts.choice import Preserves
from hasten.facts.job import describe

if TYPE_CHECKING:
    from hasten.training.run import Run

_FIELDS = (
    *("batch_size", "epochs", "max_steps", "evaluate_every", "log_every", "clip_norm", "clip_value", "seed", "shuffle"),
    *("drop_last", "on_bad_sample", "stop", "average"),
)
# Who reads the samples and how far ahead, which the order and each sample's random numbers do not depend on.
_READING = "loader_workers", "prefetch", "persistent_workers", "pin_memory", "device_prefetch"
_SAFE = frozenset({"log_every", *(f"plan.{technique}" for technique in _READING)})
_DRIFT = frozenset({"torch", "python", "device", "threads"})


class Kind(Enum):
    SAFE = auto()
    DRIFT = auto()
    RISKY = auto()


@dataclass(frozen=True, slots=True)
class Change:
    key: str
    before: Any
    now: Any
    kind: Kind

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.before)} → {_shown(self.now)}"


def configuration_of(run: Run) -> dict[str, Any]:
    """By key, as JSON can hold it. "plan.<technique>" has the choice's value and what it preserves."""
    job = run.job
    found: dict[str, Any] = {name: _plain(getattr(job, name)) for name in _FIELDS}
    found["batch_size"] = run.built.batch_size
    found["samples"] = run.built.fingerprint.samples
    found["parameters"] = run.built.fingerprint.parameters
    for number, optimizer in enumerate(run.optimizers):
        found[f"optimizer.{number}" if number else "optimizer"] = type(optimizer).__name__
    found["schedule"] = run.schedule.kinds
    for item in run.built.plan.choices:
        choice = item.choice
        preserves = choice.preserves.name if choice.preserves is not None else None
        found[f"plan.{choice.technique}"] = {
            "value": _plain(choice.value),
            "options": {name: _plain(each) for name, each in choice.options.items()},
            "preserves": preserves,
        }
    return found | {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": run.device.type,
        "threads": torch.get_num_threads(),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """What differs, in the order of the keys."""
    keys = [*before, *(key for key in now if key not in before)]
    different = [key for key in keys if before.get(key) != now.get(key)]
    return [Change(key, before.get(key), now.get(key), _kind(key, before.get(key), now.get(key))) for key in different]


def check_allowed(found: Collection[Change], allowed: Collection[str]) -> list[str]:
    """A sentence for every change that is accepted. Raises Misconfigured for a risky one that is not allowed by name,
    with all of them and what to write."""
    risky = [change for change in found if change.kind is Kind.RISKY and change.key not in allowed]
    if risky:
        told = "; ".join(map(str, risky))
        flags = " ".join(f"--allow-change {change.key}" for change in risky)
        raise Misconfigured(
            f"this run began with another configuration: {told}",
            fix=f"resume with what it began with, or say that the change is meant: {flags}",
        )
    notes = {
        Kind.SAFE: "which changes nothing that is trained",
        Kind.DRIFT: "so the run may differ from an uninterrupted one in the last bits",
        Kind.RISKY: "which changes what is trained from here on, as was allowed",
    }
    return [f"resumed with {change}, {notes[change.kind]}" for change in found]


def _kind(key: str, before: Any, now: Any) -> Kind:
    if key in _DRIFT:
        return Kind.DRIFT
    if key in _SAFE or (key.startswith("plan.") and all(map(_preserves_bits, (before, now)))):
        return Kind.SAFE
    return Kind.RISKY


def _preserves_bits(choice: Any) -> bool:
    """A choice that is absent changes nothing by itself."""
    return choice is None or choice["preserves"] == Preserves.BITS.name


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {name: _plain(each) for name, each in asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return describe(value)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping) and "preserves" in value:
        options = "".join(f", {name}={each}" for name, each in value["options"].items())
        return f"{value['value']}{options}"
    return "none" if value is None else str(value)
