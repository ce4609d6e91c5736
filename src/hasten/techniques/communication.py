"""Choose how replicas send their gradients: in how many bytes, and how much at a time.

What it does: "plain" sends gradients unchanged and "bf16" rounds them for the transfer. "powersgd" sends the two
factors of a low-rank approximation of each matrix, of the rank `rank` (1), from the step `start` (1000) on. `bucket_mb`
says how many MiB of gradients travel together. `static_graph = true`, with the first two, promises torch that every
step uses the same parameters, so it does not search for unused ones.

Why it is faster: on a slow network fewer bytes take less time. Small buckets start earlier, while the backward pass
continues; large ones need fewer messages. Without the search for unused parameters, a walk over the graph and a
reduction in every step disappear.

When it loses: on one machine, and wherever the backward pass is longer than the transfers that it hides. On a slow
processor, rounding or factorizing takes longer than sending.

What it gave up: "bf16" keeps eight bits of each gradient, also in sums. "powersgd" changes training: the error of an
approximation is added one step later. A graph that is declared static but is not gives wrong gradients, or ends the
run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hasten.parallel.options import Compression, ReplicaOptions
from hasten.techniques.common.plan_values import is_number, is_whole, refused
from hasten.techniques.contract import Choice, No, Preserves, Setup, Stage, Symptom, Technique, Yes

_COMPRESSION: Mapping[str, Compression | None] = {"plain": None, "bf16": "bf16", "powersgd": "powersgd"}
_VALUES = {"plain": Preserves.ROUNDING, "bf16": Preserves.STATISTICS, "powersgd": Preserves.TRAINING}
_BUCKETS_MB = (5, 100)  # beside torch's own 25


def applies(setup: Setup) -> Yes | No:
    if not setup.ranks.many:
        return No("one process sends no gradients; hasten train --nproc starts several")
    return Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    def plain(**options: Any) -> Choice:
        return Choice(technique="communication", value="plain", options=options, preserves=Preserves.ROUNDING)

    shorter = [Choice(technique="communication", value=each, preserves=_VALUES[each]) for each in ("bf16", "powersgd")]
    return [plain(static_graph=True), *(plain(bucket_mb=size) for size in _BUCKETS_MB), *shorter]


def apply(setup: Setup, choice: Choice) -> None:
    value = choice.value
    options: dict[str, Any] = dict(choice.options)
    known = _OF_POWERSGD if value == "powersgd" else _OPTIONS
    if (
        not isinstance(value, str)
        or value not in _VALUES
        or any(key not in known or not known[key](given) for key, given in options.items())
    ):
        raise refused(choice, _FIX)
    setup.replica = ReplicaOptions(compression=_COMPRESSION[value], **options)


_OPTIONS: Mapping[str, Callable[[Any], bool]] = {
    "bucket_mb": lambda given: is_number(given) and 0 < given < 1e6,
    "static_graph": lambda given: isinstance(given, bool),
}
_OF_POWERSGD: Mapping[str, Callable[[Any], bool]] = {
    "bucket_mb": _OPTIONS["bucket_mb"],  # with a static graph torch builds other buckets after the first step
    "rank": lambda given: is_whole(given),
    "start": lambda given: is_whole(given, 2),  # torch has built its buckets by then
}
_FIX = (
    'write "plain", "bf16" or "powersgd", with bucket_mb above 0; of the first two static_graph true or false; of '
    "powersgd a rank from 1 and a start from 2 on"
)

TECHNIQUE = Technique(
    name="communication",
    stage=Stage.CLUSTER,
    treats=Symptom.SLOW_COMMUNICATION,
    values='"plain", "bf16" or "powersgd"; bucket_mb = a number, static_graph = true; of "powersgd" rank and start',
    costs=(
        "rounds or approximates gradients, unless it is plain",
        "powersgd remembers, and saves, as much as the gradients of each process",
    ),
    source="https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
