"""Forget what blocks of the model computed, and compute it again when the backward needs it.

What it does: while training, a chosen block keeps its inputs and none of the tensors inside it. Its backward first runs
its forward again, with the same random numbers, the same autocast and the buffers as they were. "blocks" chooses every
repeated block (in a model that repeats none, its direct children that hold layers), "alternate" every second of these,
and a list of module names those modules. "measured" runs the job's forward on one batch, on the host before the model
moves to its device, so it must be able to run there. It chooses the blocks that free the share `free_share` (an option;
half where it is left out) of the bytes that all blocks keep, in the fewest seconds; a notice says which.

With the option `keep = "products"` a chosen block keeps what its matrix products, convolutions and attentions gave as
well, and computes the rest again: norms, activations, sums. That frees less, and costs little.

Why it is faster: it is not. It frees memory, so that a larger microbatch fits, and that can be faster.

When it loses: where memory is not short. It costs up to one more forward of each chosen block in every step, and copies
the block's buffers twice.

What it gave up: time. Losses, gradients and buffers stay the same to the last bit. A buffer that the forward writes, as
a batch norm does its running statistics, is written once, since the second forward works on copies. What a block counts
in plain Python attributes is counted twice, and a generator draws anew, unless it is an attribute of a module in the
block, or in a list or a dictionary of one. "measured" may choose other blocks each time, since seconds differ. Kept
products are differentiated once, so they do not go together with a `Loss.auxiliary`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.machine import Machine
from hasten.techniques.common.block_costs import measure_segments
from hasten.techniques.common.recomputed_forward import Found, LaterForwards, first_forward
from hasten.techniques.common.repeated_blocks import BlockCost, blocks_of, cheapest_segments, segments
from hasten.techniques.common.saved_products import Context, keeping_nothing, keeping_products, products_in_a_compiler
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

Contexts = Callable[[Context, Context], tuple[Context, Context]]  # of a first forward pass, and of a later one
FREE_SHARE = 0.5  # of the bytes that all blocks keep


def recompute_in_backward(block: nn.Module) -> None:
    """Make `block` keep only its inputs while it trains. A second time changes nothing.

    Its `forward` is wrapped on the instance, so the module, its names and its class stay as they are, and a deep copy
    recomputes itself rather than the original.
    """
    _wrap(block, keeping_nothing)


def recompute_all_but_products(block: nn.Module) -> None:
    """Make `block` keep its inputs and what its products give while it trains; otherwise as recompute_in_backward."""
    _wrap(block, keeping_products)


def _wrap(block: nn.Module, kept: Contexts) -> None:
    if not isinstance(block.forward, partial) or block.forward.func is not _forward:
        block.forward = partial(_forward, block, block.forward, kept)


def _forward(block: nn.Module, forward: Callable[..., Any], kept: Contexts, /, *args: Any, **kwargs: Any) -> Any:
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
        if kept is keeping_products:
            return checkpoint(run, *inputs, use_reentrant=False, context_fn=products_in_a_compiler)
        return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=True)
    found = Found()
    contexts = kept(first_forward(block, found), LaterForwards(block, found))
    return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=True, context_fn=lambda: contexts)


def _device(block: nn.Module) -> torch.device | None:
    return next((tensor.device for tensor in (*block.parameters(), *block.buffers())), None)


def applies(setup: Setup, machine: Machine) -> Yes | No:
    return Yes() if blocks_of(setup.model) else No("the model is made of single layers, and has no block to recompute")


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    values = ["blocks", "measured", "alternate"] if len(blocks_of(setup.model)) > 1 else ["blocks"]
    bits = partial(Choice, technique="activation_checkpointing", preserves=Preserves.BITS)
    return [bits(value="blocks", options={"keep": "products"}), *(bits(value=value) for value in values)]


def apply(setup: Setup, choice: Choice) -> None:
    options = dict(choice.options)
    keep = options.pop("keep", None)
    if keep not in (None, "products") or options.keys() - ({"free_share"} if choice.value == "measured" else set()):
        fix = 'give no options but keep = "products", and free_share of "measured"; random numbers are always preserved'
        raise PlanError(f"the plan asks for {choice}", fix=fix)
    recompute = recompute_in_backward if keep is None else recompute_all_but_products
    names = _measured(setup, options) if choice.value == "measured" else segments(setup.model, choice.value)
    for name in names:
        recompute(setup.model.get_submodule(name))


def _measured(setup: Setup, options: Mapping[str, Value]) -> list[str]:
    share = options.get("free_share", FREE_SHARE)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise PlanError(f"free_share is {share!r}", fix=f"write a number above 0, up to 1, such as {FREE_SHARE}")
    blocks = measure_segments(setup)
    names = cheapest_segments(blocks, math.ceil(share * sum(block.saved_bytes for block in blocks)))
    setup.notices.append(told(blocks, names))
    return names


def told(blocks: Sequence[BlockCost], names: Sequence[str]) -> str:
    """What was chosen among the measured blocks, as a sentence with bytes and seconds."""
    chosen = [block for block in blocks if block.name in names]
    freed, kept = (sum(block.saved_bytes for block in each) for each in (chosen, blocks))
    took, whole = (1e3 * sum(block.seconds for block in each) for each in (chosen, blocks))
    return (
        f"activation_checkpointing recomputes {len(chosen)} of {len(blocks)} blocks: {', '.join(names) or 'none'}. "
        f"They keep {freed:,} of {kept:,} bytes, and their forward took {took:,.2f} of {whole:,.2f} ms on the host"
    )


TECHNIQUE = Technique(
    name="activation_checkpointing",
    stage=Stage.MODEL,
    treats=Symptom.MEMORY_FULL,
    values='"blocks", "alternate", "measured" (option: free_share) or an array of module names; keep = "products"',
    costs=("one more forward of each chosen block in every step",),
    source="https://arxiv.org/abs/1604.06174",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
