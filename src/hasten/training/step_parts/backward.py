"""The backward pass from a plain scalar, without what torch looks for first and a plain scalar cannot have.

Tensor.backward takes any number of tensors of any shape and kind, with gradients of their own, and sorts that out in
Python. In a short step that is most of what a trainer costs beside the model. A step has one plain scalar, so it enters
where that ends, with the same arguments; anything else is left to torch.

Source: torch/autograd/__init__.py, where backward() and grad() end in the same call.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import has_torch_function_unary

_enter = getattr(
    torch.autograd.graph, "_engine_run_backward", None
)  # not a public name: a torch without it keeps to its own


def backward(objective: Tensor) -> None:
    """What objective.backward() does; objective is meant to be a scalar. Not for use inside torch.func."""
    plain = not objective.dim() and objective.dtype.is_floating_point
    if _enter is None or not plain or has_torch_function_unary(objective):
        torch.autograd.backward(objective)
        return
    # A new one each time: a node may hand what it is given on, and the optimizer may then change it in place.
    _enter((objective,), (torch.ones_like(objective),), False, False, (), allow_unreachable=True, accumulate_grad=True)
