"""Of which class a module was made: torch gives one that it shards a class of its own."""

from __future__ import annotations

from torch import nn

_SHARDED = "FSDPModule"  # by its name, as loading it takes a while, and few runs need it


def own_class(module: nn.Module) -> type[nn.Module]:
    kind, *bases = type(module).__mro__
    return bases[1] if bases[0].__name__ == _SHARDED else kind
