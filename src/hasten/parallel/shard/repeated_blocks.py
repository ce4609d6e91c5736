"""The blocks that a model repeats: the units in which fully_shard gathers parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import cast

from torch import nn

_CONTAINERS = nn.ModuleList, nn.Sequential, nn.ModuleDict


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Modules of which a container holds several of one class, inner ones first.

    Not among them: single layers inside such a module, modules whose parameters all lie in inner blocks, and modules
    that share a parameter with another part of the model, because torch gathers a parameter once.
    """
    paths = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    counts = _parameter_counts(model)

    def shares_nothing(member: nn.Module) -> bool:
        return all(counts[own] == paths[id(member)] * inside for own, inside in _parameter_counts(member).items())

    def repeated(container: nn.Module) -> Iterator[nn.Module]:
        members = cast("list[nn.Module]", [*container.children()])
        kinds = Counter(map(type, members))
        for member in members if isinstance(container, _CONTAINERS) else ():
            own = next(member.parameters(), None)
            if kinds[type(member)] > 1 and own is not None and _has_forward(member) and shares_nothing(member):
                yield member

    found, in_blocks = dict[nn.Module, None](), set[int]()

    def find(module: nn.Module, *, inside: bool) -> None:
        taken = {*repeated(module)}
        for member in module.children():
            find(member, inside=inside or member in taken)
            single = inside and next(member.children(), None) is None
            if member in taken and not single and any(id(own) not in in_blocks for own in member.parameters()):
                found[member] = None
                in_blocks.update(map(id, member.parameters()))

    find(model, inside=False)
    return [*found]


def _parameter_counts(module: nn.Module) -> Counter[int]:
    """By a parameter's id, at how many places in the module it is registered."""
    return Counter(id(own) for _, own in module.named_parameters(remove_duplicate=False))


def _has_forward(module: nn.Module) -> bool:
    """False for lists of modules, which are never called."""
    return type(module).forward is not nn.Module.forward
