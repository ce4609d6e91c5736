"""Say how replicas send each other their gradients: in how many bytes, and how much at a time.

What it does: "plain" sends gradients as they are, "bf16" rounds them on their way, and "powersgd" sends the two factors
of an approximation of each matrix, of the rank `rank` (1), from the step `start` (1000) on. `bucket_mb` says how many
MiB of gradients travel together. `static_graph = true`, with the first two, tells torch that every step uses the same
parameters, so that it does not look for unused ones.

Why it is faster: where the network is slow, fewer bytes take less time. Small buckets begin to travel sooner, while the
backward pass goes on; large ones are fewer messages. Not to look for unused parameters spares a walk over the graph and
a reduction in every step.

When it loses: on one machine, and wherever the backward pass is longer than what it hides. To round or to factorise
takes time of the processor, which on a slow one is longer than to send.

What it gave up: "bf16" keeps eight bits of each gradient, and adds up in as few. "powersgd" changes what is learned:
what an approximation leaves out comes a step late. A graph that is said to be static and is not gives wrong gradients,
or ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.parallel.options import Compression, ReplicaOptions
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

_COMPRESSION: Mapping[str, Compression | None] = {"plain": None, "bf16": "bf16", "powersgd": "powersgd"}
_VALUES = {"plain": Preserves.ROUNDING, "bf16": Preserves.STATISTICS, "powersgd": Preserves.TRAINING}
_BUCKETS_MB = (5, 100)  # beside torch's own 25


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if not setup.ranks.many:
        return No("one process sends nothing; hasten train --nproc starts several")
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
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
        raise PlanError(f"the plan asks for {choice}", where="communication", fix=_FIX)
    setup.replica = ReplicaOptions(compression=_COMPRESSION[value], **options)


def _is_whole(given: Any, least: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= least


_OPTIONS: Mapping[str, Callable[[Any], bool]] = {
    "bucket_mb": lambda given: isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < 1e6,
    "static_graph": lambda given: isinstance(given, bool),
}
_OF_POWERSGD: Mapping[str, Callable[[Any], bool]] = {
    "bucket_mb": _OPTIONS["bucket_mb"],  # of a static graph torch makes other buckets, when what was left out is known
    "rank": lambda given: _is_whole(given, 1),
    "start": lambda given: _is_whole(given, 2),  # torch has made its buckets by then
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
