"""What a run was configured with, as a checkpoint keeps it, and what it means to resume with something else.

A change is of one of four kinds. SAFE ones cannot change what is trained: how often to log, where data is read. DRIFT
is the ground that a run stands on, such as torch's version: the run goes on as well as it can, and is told that it may
differ in the last bits. CODE is the text of the job's own file: a change of it is told, as nobody can see what it does.
RISKY is all else: it trains something else from here on, so it needs to be allowed by name.

Not every change that is allowed has an effect, or can work at all. An optimizer's settings and a schedule's are part of
the state that goes on, so the saved ones hold; and a state fits no other shapes, kinds and lengths than its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum, auto
from typing import Any

from hasten.errors import Misconfigured
from hasten.facts.choice import Preserves
from hasten.facts.formatting import did_you_mean
from hasten.facts.job import SEED_THE_DATA, Job, describe
from hasten.techniques import ALL, Stage
from hasten.training.run_folder.config_differences import difference, differs

FIELDS = (
    *("batch_size", "epochs", "max_steps", "evaluate_every", "log_every", "clip_norm", "clip_value", "seed", "shuffle"),
    *("drop_last", "on_bad_sample", "stop", "average"),
)
# Who reads the samples and how far ahead, which the order and each sample's random numbers do not depend on.
_READING = "loader_workers", "prefetch", "persistent_workers", "pin_memory", "device_prefetch"
_SAFE = frozenset({"log_every", *(f"plan.{technique}" for technique in _READING)})
_DRIFT = frozenset({"torch", "python", "device", "threads", "plan.shard", "plan.tensor", "plan.pipeline"})
_CODE = frozenset({"code", "model.attributes"})
_OF_MODEL = frozenset({"shapes", "model"})
_OF_DATA = frozenset({"data"})
_OF_SCHEDULE = frozenset({"schedule.length", "schedule.settings"})
_OF_OPTIMIZER = re.compile(r"(optimizer(?:\.\d+)?)\.([A-Za-z_]\w*)")  # a setting, and the optimizer that has it
_OPTIMIZER = re.compile(r"optimizer(\.\d+)?")
_HELD_PLAN = frozenset({"plan.learning_rate", "plan.schedule"})
_CHANGING_MODULES = frozenset(f"plan.{technique.name}" for technique in ALL if technique.stage is Stage.MODEL)
_DIVIDING = frozenset({"plan.tensor"})  # a number of heads that a module keeps
_ONE_STATE = ({"Adam", "AdamW"},)  # optimizers that go on from each other's
_MANY = 4  # that are no slip of a hand any more


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
    def saved_one_holds(self) -> bool:
        """Whether the state that goes on brings the value back that it began with."""
        return _is_held(self.key)

    @property
    def can_never_fit(self) -> bool:
        """An optimizer of another name may be the same one, so whoever allows it knows better."""
        return not self.fits and _OPTIMIZER.fullmatch(self.key) is None

    @property
    def fits(self) -> bool:
        """Whether the state can go on with it."""
        match self.key:
            case "parameters" | "shapes" | "schedule" | "schedule.length" | "plan.conv_bn_bias":
                return False
            case "stop" | "average":  # what is new has no state
                return self.before is not None
            case "plan.precision":
                return _value(self.now) != "fp16" or _value(self.before) == "fp16"
            case key if _OPTIMIZER.fullmatch(key):
                return any({self.before, self.now} <= kinds for kinds in _ONE_STATE)
            case key:
                return re.fullmatch(r"optimizer(\.\d+)?\.groups", key) is None  # a state for each parameter


def in_force(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What the next checkpoints say of a run that goes on with a configuration from one with another: the saved values
    of all that the state brings back."""
    found = {key: saved.get(key, each) if _is_held(key) else each for key, each in now.items()}
    return {key: each for key, each in found.items() if key in saved or key not in _HELD_PLAN}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """What differs, in the order of the keys; what only follows from another change is left out."""
    keys = [*before, *(key for key in now if key not in before)]
    different = [key for key in keys if _differs(key, before, now)]
    told = [key for key in different if not _follows(key, different)]
    return [Change(key, before.get(key), now.get(key), _kind(key, before, now)) for key in told]


def check_allowed(found: Collection[Change], allowed: Collection[str]) -> list[str]:
    """A sentence for every change that is accepted. Raises Misconfigured for a risky one that is not allowed by name,
    with all of them and what to write, for one that no state fits, and for a name that none can have."""
    _check_known(allowed, [change.key for change in found])
    risky = [change for change in found if change.kind is Kind.RISKY]
    risky = [change for change in risky if change.key not in allowed or change.can_never_fit]
    if risky:
        raise _refusal(risky)
    return [f"resumed with {change}, {_meaning(change)}" for change in found]


def _is_held(key: str) -> bool:
    return key == "schedule.settings" or key in _HELD_PLAN or _OF_OPTIMIZER.fullmatch(key) is not None


def _differs(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """An older checkpoint lacks some keys, and another torch may know other settings: that is no change."""
    newer = key in _OF_MODEL | _OF_DATA | _OF_SCHEDULE | _CODE or _OF_OPTIMIZER.fullmatch(key)
    if newer and (key not in before or key not in now):
        return False
    return differs(before.get(key), now.get(key))


def _follows(key: str, different: Collection[str]) -> bool:
    """Whether a change of this is what another one brings with it."""
    setting = _OF_OPTIMIZER.fullmatch(key)
    if setting:
        owner, name = setting.groups()
        causes = {owner, "parameters", "shapes", *_CHANGING_MODULES} if name == "groups" else {owner, f"{owner}.groups"}
        return any(each in causes or (name == "lr" and each == "plan.learning_rate") for each in different)
    causes_of = {
        "shapes": {"parameters"},
        "data": {"samples", "seed"},  # the command line seeds with it what the job draws
        "model": _CHANGING_MODULES,
        "model.attributes": _CHANGING_MODULES | _DIVIDING,
        "schedule.length": {"schedule"},
        "schedule.settings": {"schedule", "schedule.length", "plan.schedule"},
    }
    return any(each in causes_of.get(key, ()) for each in different)


def _check_known(allowed: Collection[str], changed: Collection[str]) -> None:
    """Those that have not changed are known too: the same command is given whenever a run is begun again."""
    own = {*FIELDS, *_DRIFT, *_CODE, *_OF_MODEL, *_OF_DATA, *_OF_SCHEDULE, "samples", "parameters"}
    known = own.union(changed, (each.name for each in fields(Job)), (f"plan.{each.name}" for each in ALL))
    for key in allowed:
        if key not in known and re.fullmatch(r"optimizer(\.\w+)+", key) is None:
            raise Misconfigured(
                f"{key!r} is nothing that a run is configured with",
                where="allow_change",
                fix=did_you_mean(key, [*changed, *FIELDS]),
            )


def _refusal(risky: Sequence[Change]) -> Misconfigured:
    told = "; ".join(map(str, risky))
    unfit = [change.key for change in risky if not change.fits]
    if len(risky) >= _MANY:
        what = f"this looks like another job, or the folder of another run: {len(risky)} things differ: {told}"
        fix = "name the folder of this job's own run, or begin one in a new folder"
        meant = "; or, if all of it is meant, name each of these with --allow-change"
        return Misconfigured(what, fix=fix if unfit else fix + meant)
    what = f"this run began with another configuration: {told}"
    if unfit:
        fix = f"resume with what it began with, as its state fits no other {_listed(unfit)}; or {_anew(unfit)}"
        return Misconfigured(what, fix=fix)
    flags = " ".join(f"--allow-change {shlex.quote(change.key)}" for change in risky)
    fix = f"resume with what it began with, or say that the change is meant: {flags}"
    if [change.key for change in risky] == ["data"]:
        fix = f"{SEED_THE_DATA}; if the change is meant: {flags}"
    held = [change.key for change in risky if change.saved_one_holds]
    if held:
        fix += f". Then the saved {_listed(held)} will hold all the same; to train with another, {_anew(held)}"
    return Misconfigured(what, fix=fix)


def _anew(keys: Collection[str]) -> str:
    taken = "hasten export RUN -o weights.safetensors, then"
    if {"parameters", "shapes"}.intersection(keys):
        return f"begin a new run with those of its weights that fit: {taken} hasten.read_weights in the job's model"
    return f"begin a new run with its weights: {taken} hasten train with --weights weights.safetensors"


def _meaning(change: Change) -> str:
    if change.kind is Kind.RISKY and change.saved_one_holds:
        return "as was allowed; but the saved one holds, as the state that goes on brings it back"
    return {
        Kind.SAFE: "which changes nothing that is trained",
        Kind.DRIFT: "so the run may differ from an uninterrupted one in the last bits",
        Kind.CODE: "which counts from here on",
        Kind.RISKY: "which changes what is trained from here on, as was allowed",
    }[change.kind]


def _kind(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Kind:
    if key in _DRIFT:
        return Kind.DRIFT
    if key in _CODE:
        return Kind.CODE
    if key in _SAFE or (key.startswith("plan.") and all(_preserves_bits(each.get(key)) for each in (before, now))):
        return Kind.SAFE
    return Kind.RISKY


def _preserves_bits(choice: Any) -> bool:
    """A choice that is absent changes nothing by itself."""
    return choice is None or choice["preserves"] == Preserves.BITS.name


def _value(choice: Any) -> Any:
    return None if choice is None else choice["value"]


def _listed(keys: Sequence[str]) -> str:
    *first, last = keys
    return f"{', '.join(first)} and {last}" if first else last


def plain(value: Any) -> Any:
    """As JSON can hold it; what it cannot hold is described."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__} | {name: plain(each) for name, each in asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return describe(value)
