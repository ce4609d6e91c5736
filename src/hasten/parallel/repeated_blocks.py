"""The blocks that a model repeats: the units that are recomputed, gathered, or put into stages."""

from __future__ import annotations

from collections import Counter

from torch import nn

_LIST = nn.ModuleList | nn.Sequential


def repeated_blocks(model: nn.Module) -> list[str]:
    """Names of the blocks that a model repeats: members of a ModuleList or Sequential with siblings of the same type.

    A single layer is no block: recomputing it frees nothing, and gathering it sends small messages. Of nested blocks
    the outermost counts, but a member that is itself a list of repeated blocks is replaced by these.
    """
    found: list[str] = []
    for name, child in model.named_children():
        inner = [f"{name}.{deeper}" for deeper in repeated_blocks(child)]
        repeated = isinstance(model, _LIST) and sum(type(member) is type(child) for member in model) > 1
        found += [name] if repeated and is_block(child) and not (inner and isinstance(child, _LIST)) else inner
    return found


def is_block(module: nn.Module) -> bool:
    """Whether it has a forward, and contains further modules."""
    return type(module).forward is not nn.Module.forward and any(True for _ in module.children())


def unshared_blocks(model: nn.Module) -> list[str]:
    """The repeated blocks with parameters, none of which another part of the model uses: torch gathers each once."""
    everywhere = _parameter_counts(model)
    found = dict[nn.Module, str]()
    for name in repeated_blocks(model):
        counts = _parameter_counts(model.get_submodule(name))
        if counts and all(everywhere[own] == count for own, count in counts.items()):
            found[model.get_submodule(name)] = name
    return [*found.values()]


def _parameter_counts(module: nn.Module) -> Counter[nn.Parameter]:
    """At how many places in the module each parameter is registered."""
    return Counter(own for _, own in module.named_parameters(remove_duplicate=False))
