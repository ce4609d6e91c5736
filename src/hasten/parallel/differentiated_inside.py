"""A loss that differentiates in its forward pass, as a gradient penalty does, goes with whole layers alone.

Behind any backward pass torch frees what it has gathered. So what lies around the layers is in parts for the rest of
the forward pass, and a gradient that is differentiated again leads to copies without memory: to read them ends the
process.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hasten.errors import JobError


def refused() -> JobError:
    what = "differentiates in its forward pass, which frees what is gathered for that pass"
    return JobError("loss", what, "leave `shard` out of the plan")


def refuse_twice(layer: nn.Module) -> None:
    """Raise JobError in a backward pass through what this layer gives, where that is to be differentiated again."""
    layer.register_forward_hook(_watch)


def _watch(layer: nn.Module, given: Any, returned: Any) -> None:
    for each in tree_leaves(returned):
        if isinstance(each, Tensor) and each.requires_grad:
            each.register_hook(_once)


def _once(gradient: Tensor) -> None:
    if torch.is_grad_enabled():  # by create_graph alone
        raise refused()
