"""Choose how replicas send their gradients: the dtype, and how much at a time.

What it does: under data parallelism (DDP), "plain" sends gradients unchanged, and "bf16" rounds them for the transfer.

Options: `bucket_mb`, how many MiB of gradients travel together (torch's default is 25). `static_graph = true` promises
torch that every step uses the same parameters, so that it does not search for unused ones.

Why it is faster: on a slow network, fewer bytes take less time. Small buckets start earlier, during the backward pass;
large ones need fewer messages. A static graph saves a walk over the graph and a reduction in every step.

When it loses: on one machine, and wherever the backward pass takes longer than the transfers that it hides. On a slow
CPU, rounding takes longer than sending.

What it changes: rounding only ("equal up to rounding") with "plain". "bf16" keeps eight bits of each gradient, also in
sums ("same statistics"). A graph that is declared static but is not gives wrong gradients, or ends the run.

Limits: it needs several processes. A plan cannot combine it with `shard` or `pipeline`.

Example:

    [[choice]]
    technique = "communication"
    value = "plain"
    options = { bucket_mb = 100, static_graph = true }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.parallel.options import ReplicaOptions
from hasten.techniques.common.plan_values import is_number, refused
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

_BUCKETS_MB = (5, 100)  # beside torch's own 25
_FIX = 'write "plain" or "bf16"; as options bucket_mb = a number above 0, and static_graph = true or false'


def applies(setup: Setup) -> Yes | No:
    if not setup.ranks.many:
        return No("one process sends no gradients; hasten train --nproc starts several")
    return Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    def plain(**options: Any) -> Choice:
        return Choice(technique="communication", value="plain", options=options, preserves=Preserves.ROUNDING)

    shorter = Choice(technique="communication", value="bf16", preserves=Preserves.STATISTICS)
    return [plain(static_graph=True), *(plain(bucket_mb=size) for size in _BUCKETS_MB), shorter]


def apply(setup: Setup, choice: Choice) -> None:
    options: dict[str, Any] = dict(choice.options)
    bucket, is_static = options.pop("bucket_mb", None), options.pop("static_graph", False)
    sensible = isinstance(is_static, bool) and (bucket is None or (is_number(bucket) and 0 < bucket < 1e6))
    if choice.value not in ("plain", "bf16") or options or not sensible:
        raise refused(choice, _FIX)
    setup.replica = ReplicaOptions(in_bf16=choice.value == "bf16", bucket_mb=bucket, static_graph=is_static)


TECHNIQUE = Technique(
    name="communication",
    stage=Stage.CLUSTER,
    treats=Symptom.SLOW_COMMUNICATION,
    values='"plain" or "bf16"; options: bucket_mb (a number above 0), static_graph (true or false)',
    costs=('"bf16" rounds the gradients',),
    source="https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
