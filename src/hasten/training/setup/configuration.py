"""What it means to resume a run with another configuration than the checkpoint's.

SAFE changes cannot change what is trained, such as how often to log. DRIFT is the environment, such as torch's version:
the run may differ in the last bits. CODE is the text of the job's own file, whose effect is unknown. RISKY is all else,
and must be allowed by name. Optimizer and schedule settings are restored with their state, even where a change is
allowed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from enum import Enum, auto
from typing import Any

from hasten.errors import Misconfigured
from hasten.facts.choice import Preserves
from hasten.facts.job import SEED_THE_DATA, describe
from hasten.facts.techniques.stage import Stage
from hasten.techniques import ALL
from hasten.training.run_folder.config_differences import difference, differs

FIELDS = (
    *("batch_size", "epochs", "max_steps", "evaluate_every", "log_every", "clip_norm", "clip_value", "seed", "shuffle"),
    *("drop_last", "on_bad_sample", "stop", "keep", "average"),
)
# How samples are read, which their order and random numbers do not depend on.
_READING = "loader_workers", "prefetch", "persistent_workers", "pin_memory", "device_prefetch"
_SAFE = frozenset({"log_every", *(f"plan.{technique}" for technique in _READING)})
_DRIFT = frozenset({"torch", "python", "device", "threads", "plan.shard", "plan.tensor", "plan.pipeline"})
_OF_OPTIMIZER = re.compile(r"(optimizer(?:\.\d+)?)\.([A-Za-z_]\w*)")  # a setting, and the optimizer that has it
_OPTIMIZER = re.compile(r"optimizer(\.\d+)?")
_RESTORED_PLAN = frozenset({"plan.learning_rate", "plan.schedule"})
_CHANGING_MODULES = frozenset(f"plan.{technique.name}" for technique in ALL if technique.stage is Stage.MODEL)
_CAUSES = {
    "shapes": {"parameters"},
    "data": {"samples", "seed"},  # the command line seeds the job's data with it
    "model": _CHANGING_MODULES,
    "schedule.length": {"schedule"},
    "schedule.settings": {"schedule", "schedule.length", "plan.schedule"},
}
_ONE_STATE = {"Adam", "AdamW"}  # optimizers with one form of state


class Kind(Enum):
    SAFE = auto()
    DRIFT = auto()
    CODE = auto()
    RISKY = auto()


@dataclass(frozen=True, slots=True)
class Change:
    key: str
    before: Any
    now: Any
    kind: Kind

    def __str__(self) -> str:
        return f"{self.key}: {difference(self.before, self.now)}"

    @property
    def fits(self) -> bool:
        """Whether the saved state can be loaded."""
        match self.key:
            case "parameters" | "shapes" | "schedule" | "schedule.length" | "plan.conv_bn_bias" | "keep":
                return False
            case "stop" | "average":  # a new one has no saved state
                return self.before is not None
            case "plan.precision":
                return _value(self.now) != "fp16" or _value(self.before) == "fp16"
            case key if _OPTIMIZER.fullmatch(key):
                return {self.before, self.now} <= _ONE_STATE
            case key:
                return re.fullmatch(r"optimizer(\.\d+)?\.groups", key) is None  # a state for each parameter


def in_force(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that the next checkpoints save: with the saved values of everything that loading restores."""
    found = {key: saved.get(key, each) if _is_restored(key) else each for key, each in now.items()}
    return {key: each for key, each in found.items() if key in saved or key not in _RESTORED_PLAN}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """What differs, in the order of the keys, without what only follows from another change."""
    keys = [*before, *(key for key in now if key not in before)]
    different = [key for key in keys if _differs(key, before, now)]
    causes = [key for key in different if not _follows(key, different)]
    return [Change(key, before.get(key), now.get(key), _kind(key, before, now)) for key in causes]


def check_allowed(found: Collection[Change], allowed: Collection[str]) -> list[str]:
    """A sentence for every accepted change. Raises Misconfigured for risky ones that are not allowed by name, with the
    options to write, and for changes that no state fits."""
    risky = [change for change in found if change.kind is Kind.RISKY]
    # An optimizer of another name may be the same one: its change can be allowed.
    risky = [each for each in risky if each.key not in allowed or not (each.fits or _OPTIMIZER.fullmatch(each.key))]
    if risky:
        raise _refusal(risky)
    return [f"resumed with {change}, {_meaning(change)}" for change in found]


def _is_restored(key: str) -> bool:
    """Whether loading the state restores the saved value."""
    return key == "schedule.settings" or key in _RESTORED_PLAN or _OF_OPTIMIZER.fullmatch(key) is not None


def _differs(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """An optimizer's setting that one of them lacks is no change: another torch has other ones."""
    if _OF_OPTIMIZER.fullmatch(key) and (key not in before or key not in now):
        return False
    return differs(before.get(key), now.get(key))


def _follows(key: str, different: Collection[str]) -> bool:
    """Whether this change follows from another one."""
    causes = _CAUSES.get(key, set[str]())
    if setting := _OF_OPTIMIZER.fullmatch(key):
        owner, name = setting.groups()
        causes = {owner, f"{owner}.groups"} if name != "groups" else {owner, "parameters", "shapes", *_CHANGING_MODULES}
        causes |= {"plan.learning_rate"} if name == "lr" else set()
    return not causes.isdisjoint(different)


def _refusal(risky: Sequence[Change]) -> Misconfigured:
    what = f"this run was started with another configuration: {'; '.join(map(str, risky))}"
    again = "resume with the original configuration"
    new_run = (
        "start a new run from its weights: hasten export RUN -o weights.safetensors, then hasten train with --weights "
        "weights.safetensors, or hasten.read_weights in Job.model where only some of them fit"
    )
    unfit = [change.key for change in risky if not change.fits]
    if unfit:
        return Misconfigured(what, fix=f"{again}, because the saved state fits no other {_listed(unfit)}; or {new_run}")
    flags = " ".join(f"--allow-change {shlex.quote(change.key)}" for change in risky)
    fix = f"{again}, or allow the change: {flags}"
    if [change.key for change in risky] == ["data"]:
        fix = f"{SEED_THE_DATA}; if the change is intended: {flags}"
    restored = [change.key for change in risky if _is_restored(change.key)]
    if restored:
        fix += f". The saved {_listed(restored)} is restored all the same; to train with another, {new_run}"
    return Misconfigured(what, fix=fix)


def _meaning(change: Change) -> str:
    if change.kind is Kind.RISKY and _is_restored(change.key):
        return "as allowed; but the saved value is used, because loading the state restores it"
    return {
        Kind.SAFE: "which does not change what is trained",
        Kind.DRIFT: "so the run may differ from an uninterrupted one in the last bits",
        Kind.CODE: "which is used from here on",
        Kind.RISKY: "which changes what is trained from here on, as allowed",
    }[change.kind]


def _kind(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Kind:
    if key in _DRIFT:
        return Kind.DRIFT
    if key == "code":
        return Kind.CODE
    if key in _SAFE or (key.startswith("plan.") and all(_preserves_bits(each.get(key)) for each in (before, now))):
        return Kind.SAFE
    return Kind.RISKY


def _preserves_bits(choice: Any) -> bool:
    """True for an absent choice."""
    return choice is None or choice["preserves"] == Preserves.BITS.name


def _value(choice: Any) -> Any:
    return None if choice is None else choice["value"]


def _listed(keys: Sequence[str]) -> str:
    *first, last = keys
    return f"{', '.join(first)} and {last}" if first else last


def plain(value: Any) -> Any:
    """The value as JSON can hold it; a description of any other."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {name: plain(each) for name, each in asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return describe(value)
