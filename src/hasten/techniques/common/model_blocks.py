"""Which blocks of a model to recompute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Value
from hasten.parallel.repeated_blocks import is_block, repeated_blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockCost:
    """The memory that recomputing one block frees, and the time that it takes.

    saved_bytes: saved inside the block for its backward, without parameters, buffers, and the block's inputs and
        outputs, which stay whether it is recomputed or not.
    seconds: of one forward.
    """

    name: str
    saved_bytes: int
    seconds: float


def blocks_of(model: nn.Module) -> list[str]:
    """Names of the repeated blocks, or where there are none, of the model's direct children that are blocks."""
    return repeated_blocks(model) or [name for name, child in model.named_children() if is_block(child)]


def segments(model: nn.Module, value: Value) -> list[str]:
    """The module names that a choice's value means. Raises PlanError for a value that means none, or a module without a
    forward."""
    if value in ("blocks", "alternate"):
        return blocks_of(model)[:: 1 if value == "blocks" else 2]
    modules = dict(model.named_modules())
    if not isinstance(value, list) or not value:
        raise PlanError(
            f"activation_checkpointing is {value!r}", fix='write "blocks", "alternate", "measured" or a list of modules'
        )
    for name in value:
        if not name or name not in modules or type(modules[name]).forward is nn.Module.forward:
            raise PlanError(
                f"activation_checkpointing names {name!r}, and the model has no such module with a forward",
                fix="write names such as " + ", ".join([known for known in modules if known][:4]),
            )
    return [str(name) for name in value]


def cheapest_segments(blocks: Sequence[BlockCost], must_free_bytes: int) -> list[str]:
    """Blocks whose recomputation frees at least `must_free_bytes`, in the order of `blocks`: those that free the most
    bytes a second first.

    The bytes are free at the end of the forward; while one block runs backward, its own are in use again. Raises
    PlanError when all blocks together free less.
    """
    freed, chosen = 0, set[str]()
    for block in sorted(blocks, key=lambda each: each.seconds / max(each.saved_bytes, 1)):
        if freed >= must_free_bytes:
            break
        freed += block.saved_bytes
        chosen.add(block.name)
    if freed < must_free_bytes:
        raise PlanError(
            f"recomputing every block frees {freed} bytes, and {must_free_bytes} are needed",
            fix="use a smaller microbatch",
        )
    return [block.name for block in blocks if block.name in chosen]
