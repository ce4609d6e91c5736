"""Free the activations of blocks after the forward pass, and recompute them in the backward pass.

What it does: in training, a chosen block saves only its inputs. Its backward pass first runs the forward pass again,
with the same random numbers, autocast state and buffers.

  * "blocks": every repeated block; else the direct children with layers.
  * "alternate": every second one of these.
  * "measured": the blocks that free half of the saved bytes in the fewest
    seconds. It runs the job's forward once on the host; a notice lists them.
  * An array of module names: these modules.

Options: `free_share`, the share of the saved bytes that "measured" frees (default 0.5). `keep = "products"` also saves
the results of matrix products, convolutions and attention, which frees less memory and costs little time.

Why it is faster: it is not. It frees memory, so that a larger microbatch fits, and that can be faster.

When it loses: where memory is sufficient. Every step costs up to one more forward pass of each chosen block, and copies
the block's buffers twice.

What it changes: nothing ("bit-exact"). A buffer that the forward pass writes, such as batch-norm statistics, is updated
once, because the recomputation works on copies.

Limits: a counter in a plain Python attribute counts twice. A block with its own random generator draws other numbers in
the recomputation. `keep` cannot be combined with `Loss.auxiliary`. "measured" may choose other blocks in another run.

Example:

    [[choice]]
    technique = "activation_checkpointing"
    value = "measured"
    options = { free_share = 0.25, keep = "products" }
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.attention_layers import same_attention_later
from hasten.techniques.common.block_costs import measure_segments, summary
from hasten.techniques.common.model_blocks import blocks_of, cheapest_segments, segments
from hasten.techniques.common.plan_values import is_number, refused
from hasten.techniques.common.restored_state import BuffersBefore, LaterForwards, first_forward
from hasten.techniques.common.saved_products import Context, products_in_a_compiler, saving_nothing, saving_products
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

Contexts = Callable[[Context, Context], tuple[Context, Context]]  # of a first forward pass, and of a later one
FREE_SHARE = 0.5  # of the bytes that all blocks save


def recompute_in_backward(block: nn.Module, saving: Contexts = saving_nothing) -> None:
    """Make the block save in training only its inputs, and what `saving` saves. A second call changes nothing.

    Its `forward` is wrapped on the instance, so the module, its names and its class do not change, and a deep copy
    recomputes itself rather than the original.
    """
    if not isinstance(block.forward, partial) or block.forward.func is not _forward:
        block.forward = partial(_forward, block, block.forward, saving)


def _forward(block: nn.Module, forward: Callable[..., Any], saving: Contexts, /, *args: Any, **kwargs: Any) -> Any:
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    names = tuple(kwargs)
    attention = nullcontext() if torch.compiler.is_compiling() else same_attention_later()

    def run(place: Tensor, *inputs: Any) -> Any:
        positional, named = inputs[: len(args)], inputs[len(args) :]
        with attention:
            return forward(*positional, **dict(zip(names, named, strict=True)))

    # torch saves the random state of the devices that its positional arguments are on. So keyword arguments are passed
    # as positional ones, and an empty tensor adds the block's own device.
    inputs = (torch.empty(0, device=_device(block)), *args, *kwargs.values())
    if torch.compiler.is_compiling():
        # A compiled graph writes each buffer once anyway.
        if saving is saving_products:
            return checkpoint(run, *inputs, use_reentrant=False, context_fn=products_in_a_compiler)
        return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=True)
    before: BuffersBefore = {}
    contexts = saving(first_forward(block, before), LaterForwards(block, before))
    return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=True, context_fn=lambda: contexts)


def _device(block: nn.Module) -> torch.device | None:
    return next((tensor.device for tensor in (*block.parameters(), *block.buffers())), None)


def applies(setup: Setup) -> Yes | No:
    return Yes() if blocks_of(setup.model) else No("the model has no block of several layers to recompute")


def candidates(setup: Setup) -> Sequence[Choice]:
    values = ["blocks", "measured", "alternate"] if len(blocks_of(setup.model)) > 1 else ["blocks"]
    bits = partial(Choice, technique="activation_checkpointing", preserves=Preserves.BITS)
    return [bits(value="blocks", options={"keep": "products"}), *(bits(value=value) for value in values)]


def apply(setup: Setup, choice: Choice) -> None:
    options = dict(choice.options)
    keep = options.pop("keep", None)
    if keep not in (None, "products") or options.keys() - ({"free_share"} if choice.value == "measured" else set()):
        raise refused(choice, 'write no options but keep = "products", and free_share with "measured"')
    names = _measured(setup, options) if choice.value == "measured" else segments(setup.model, choice.value)
    for name in names:
        recompute_in_backward(setup.model.get_submodule(name), saving_nothing if keep is None else saving_products)


def _measured(setup: Setup, options: Mapping[str, Value]) -> list[str]:
    share = options.get("free_share", FREE_SHARE)
    if not is_number(share) or not 0 < share <= 1:
        fix = f"write a number above 0, up to 1, for example {FREE_SHARE}"
        raise PlanError(f"free_share is {share!r}", where="activation_checkpointing", fix=fix)
    blocks = measure_segments(setup)
    names = cheapest_segments(blocks, math.ceil(share * sum(block.saved_bytes for block in blocks)))
    setup.notices.append(summary(blocks, names))
    return names


TECHNIQUE = Technique(
    name="activation_checkpointing",
    stage=Stage.MODEL,
    treats=Symptom.MEMORY_FULL,
    values='"blocks", "alternate", "measured" or an array of module names; options: free_share, keep',
    costs=("one more forward pass of each chosen block in every step",),
    source="https://arxiv.org/abs/1604.06174",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
