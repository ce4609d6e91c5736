"""The blocks that a model repeats, and which of them to recompute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Value

_LIST = nn.ModuleList | nn.Sequential


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


def repeated_blocks(model: nn.Module) -> list[str]:
    """Names of the blocks that a model repeats: members of a ModuleList or Sequential with siblings of the same type.

    A single layer is no block, as recomputing it frees nothing. Of nested blocks the outermost counts, but a member
    that is itself a list of repeated blocks is replaced by these.
    """
    found: list[str] = []
    for name, child in model.named_children():
        inner = [f"{name}.{deeper}" for deeper in repeated_blocks(child)]
        repeated = isinstance(model, _LIST) and sum(type(member) is type(child) for member in model) > 1
        found += [name] if repeated and is_block(child) and not (inner and isinstance(child, _LIST)) else inner
    return found


def blocks_of(model: nn.Module) -> list[str]:
    """Names of the repeated blocks, or where there are none, of the model's direct children that are blocks."""
    return repeated_blocks(model) or [name for name, child in model.named_children() if is_block(child)]


def is_block(module: nn.Module) -> bool:
    """Whether it has a forward, and contains further modules."""
    return type(module).forward is not nn.Module.forward and any(True for _ in module.children())


def segments(model: nn.Module, value: Value) -> list[str]:
    """The module names that a choice's value means. Raises PlanError for a value that means none, or a module without a
    forward."""
    if value == "blocks":
        return blocks_of(model)
    if value == "alternate":
        return blocks_of(model)[::2]
    modules = dict(model.named_modules())
    if not isinstance(value, list) or not value:
        raise PlanError(
            f"activation_checkpointing is {value!r}", fix='write "blocks", "alternate", "measured" or a list of modules'
        )
    for name in value:
        if not name or name not in modules:
            raise PlanError(
                f"activation_checkpointing names {name!r}, and the model has no such module", fix=_known(model)
            )
        if type(modules[name]).forward is nn.Module.forward:
            raise PlanError(
                f"activation_checkpointing names {name!r}, a list without a forward", fix="name its members"
            )
    return [str(name) for name in value]


def _known(model: nn.Module) -> str:
    return "write names such as " + ", ".join([name for name, _ in model.named_modules() if name][:4])


def cheapest_segments(blocks: Sequence[BlockCost], must_free_bytes: int) -> list[str]:
    """The blocks whose recomputation frees `must_free_bytes` in the fewest seconds, in the order of `blocks`.

    The result is exact: of all selections among the first blocks, only those are continued that no other beats in both
    bytes and seconds. Models repeat few kinds of block, so these are few. The bytes are free at the end of the forward;
    while one block runs backward, its own are in use again. Raises PlanError when all blocks together free less.

    Source: Nemhauser and Ullmann 1969, Discrete dynamic programming and capital allocation.
    """
    frontier: list[tuple[int, float, tuple[str, ...]]] = [(0, 0.0, ())]
    for block in blocks:
        frontier += [
            # Capped, so that selections that free more than enough compete by their seconds only.
            (min(freed + block.saved_bytes, max(must_free_bytes, 0)), seconds + block.seconds, (*names, block.name))
            for freed, seconds, names in frontier
        ]
        frontier = _unbeaten(frontier)
    freed, _, names = frontier[0]
    if freed < must_free_bytes:
        raise PlanError(
            f"recomputing every block frees {freed} bytes, and {must_free_bytes} are needed",
            fix="use a smaller microbatch",
        )
    return list(names)


def _unbeaten(selections: list[tuple[int, float, tuple[str, ...]]]) -> list[tuple[int, float, tuple[str, ...]]]:
    """Those that free more than every cheaper one, by falling bytes."""
    found: list[tuple[int, float, tuple[str, ...]]] = []
    for selection in sorted(selections, key=lambda each: (-each[0], each[1], len(each[2]))):
        if not found or selection[1] < found[-1][1]:
            found.append(selection)
    return found
