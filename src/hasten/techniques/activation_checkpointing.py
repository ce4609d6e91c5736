"""Forget what blocks of the model computed, and compute it again when the backward needs it.

What it does: while training, a chosen block keeps its inputs and none of the tensors inside it. Its backward first runs
its forward again, with the same random numbers, the same autocast and the buffers as they were. "blocks" chooses every
repeated block (in a model that repeats none, its direct children that hold layers), "alternate" every second of these,
and a list of module names those modules.

Why it is faster: it is not. It frees memory, so that a larger microbatch fits, and that can be faster.

When it loses: where memory is not short. It costs up to one more forward of each chosen block in every step, and copies
the block's buffers twice.

What it gave up: time. Losses, gradients and buffers stay the same to the last bit. A buffer that the forward writes, as
a batch norm does its running statistics, is written once, since the second forward works on copies. What a block counts
in plain Python attributes is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.machine import Machine
from hasten.techniques._replay import Found, LaterForwards, first_forward
from hasten.techniques._segments import blocks_of
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup


def recompute_in_backward(block: nn.Module) -> None:
    """Make `block` keep only its inputs while it trains. A second time changes nothing.

    Its `forward` is wrapped on the instance, so the module, its names and its class stay as they are, and a deep copy
    recomputes itself rather than the original.
    """
    if not isinstance(block.forward, partial) or block.forward.func is not _forward:
        block.forward = partial(_forward, block, block.forward)


def _forward(block: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    names = tuple(kwargs)

    def run(place: Tensor, *inputs: Any) -> Any:
        positional, named = inputs[: len(args)], inputs[len(args) :]
        return forward(*positional, **dict(zip(names, named, strict=True)))

    # torch keeps the random state of those devices that its direct arguments lie on. So keyword arguments are passed as
    # direct ones, and an empty tensor stands for the block's own device.
    inputs = (torch.empty(0, device=_device(block)), *args, *kwargs.values())
    if torch.compiler.is_compiling():
        # A compiled graph writes each buffer once, by its nature.
        return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=True)
    found: Found = {}
    contexts = first_forward(block, found), LaterForwards(block, found)
    return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=True, context_fn=lambda: contexts)


def _device(block: nn.Module) -> torch.device | None:
    return next((tensor.device for tensor in (*block.parameters(), *block.buffers())), None)


def segments(model: nn.Module, value: Value) -> list[str]:
    """The module names that a choice's value means. Raises PlanError when it means none, or what cannot be called."""
    if value == "blocks":
        return blocks_of(model)
    if value == "alternate":
        return blocks_of(model)[::2]
    modules = dict(model.named_modules())
    if not isinstance(value, list) or not value:
        raise PlanError(
            f"activation_checkpointing is {value!r}", fix='write "blocks", "alternate" or a list of modules'
        )
    for name in value:
        if not name or name not in modules:
            raise PlanError(
                f"activation_checkpointing names {name!r}, and the model has no such module", fix=_known(model)
            )
        if type(modules[name]).forward is nn.Module.forward:
            raise PlanError(
                f"activation_checkpointing names {name!r}, a list that nothing calls", fix="name its members"
            )
    return [str(name) for name in value]


def _known(model: nn.Module) -> str:
    return "write names such as " + ", ".join([name for name, _ in model.named_modules() if name][:4])


def applies(setup: Setup, machine: Machine) -> Yes | No:
    return Yes() if blocks_of(setup.model) else No("the model is made of single layers, and has no block to recompute")


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    values = ["blocks", "alternate"] if len(blocks_of(setup.model)) > 1 else ["blocks"]
    return [Choice(technique="activation_checkpointing", value=value, preserves=Preserves.BITS) for value in values]


def apply(setup: Setup, choice: Choice) -> None:
    if choice.options:
        raise PlanError(f"the plan asks for {choice}", fix="give no options; random numbers are always preserved")
    for name in segments(setup.model, choice.value):
        recompute_in_backward(setup.model.get_submodule(name))


TECHNIQUE = Technique(
    name="activation_checkpointing",
    stage=Stage.MODEL,
    treats=Symptom.MEMORY_FULL,
    costs=("one more forward of each chosen block in every step",),
    source="https://arxiv.org/abs/1604.06174",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
