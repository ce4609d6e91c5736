"""Divide each parameter, gradient and optimizer state over the processes (FSDP).

What it does: applies torch's fully_shard to the processes of the run. Each repeated layer of the model is gathered when
it computes. "zero3" frees it after its forward pass and gathers it again for its backward pass. "zero2" keeps it in
between, which takes more memory and sends less. A run of one process shards nothing.

Options:

  * `parameters = "bf16"`: gathers the repeated layers in bfloat16, half the
    bytes. Their outputs have that dtype. Use it with precision = "bf16".
  * `gradients = "bf16"`: sums gradients in bfloat16.
  * `meta = true`: only the first process initializes the weights, and sends
    the others their parts. So no other process ever holds the whole model.

Why it is faster: it is not; it saves memory. Each of N processes holds about one N-th of the model and of the
optimizer's state, so a larger model or a larger batch fits.

When it loses: where everything fits anyway. Every step then sends the parameters once or twice for nothing.

What it changes: rounding only ("equal up to rounding"), because gradients are summed over the processes in another
order. With `parameters`, sums and norms in those layers have 8 bits of precision; with `gradients`, each sum over the
processes has.

Limits: it needs several processes. Models with scalar parameters are refused, and so are losses that use a parameter
without calling its layer. A plan cannot combine it with `communication` or `compile`.

Example:

    [[choice]]
    technique = "shard"
    value = "zero3"
    options = { parameters = "bf16", meta = true }
"""

from __future__ import annotations

import torch

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.parallel.options import ShardOptions
from hasten.techniques.common.plan_values import refused
from hasten.techniques.contract import No, Technique, Yes, proposing
from hasten.techniques.setup import Setup

META = "meta"
_VALUES = ("zero3", "zero2")  # the one that saves the most memory first
_FIX = 'write "zero2" or "zero3"; as options parameters = "bf16", gradients = "bf16" and meta = true'


def applies(setup: Setup) -> Yes | No:
    if not setup.ranks.many:
        return No("one process cannot shard a model; hasten train --nproc starts several")
    return Yes()


def apply(setup: Setup, choice: Choice) -> None:
    options = dict(choice.options)
    travels = [options.pop(name, None) for name in ("parameters", "gradients")]
    meta = options.pop(META, False)
    sensible = all(each in (None, "bf16") for each in travels) and isinstance(meta, bool)
    if choice.value not in _VALUES or options or not sensible:
        raise refused(choice, _FIX)
    parameters, gradients = (torch.bfloat16 if each else None for each in travels)
    setup.shard = ShardOptions(
        keeps_gathered=choice.value == "zero2", parameters=parameters, gradients=gradients, made_once=bool(meta)
    )


TECHNIQUE = Technique(
    name="shard",
    stage=Stage.CLUSTER,
    treats=Symptom.MEMORY_FULL,
    values='"zero2" or "zero3"; options: parameters ("bf16"), gradients ("bf16"), meta (true or false)',
    costs=("gathers parameters in every step", "gathers all weights, part by part, at the end of the run"),
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    applies=applies,
    candidates=proposing("shard", Preserves.ROUNDING, *_VALUES),
    apply=apply,
)
