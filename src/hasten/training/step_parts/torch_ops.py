"""Gradients and lists of tensors, by operations of torch that have no public name. Checked on torch 2.9 to 2.13.

Operations on a list of tensors run as one kernel. Source: https://docs.pytorch.org/docs/stable/optim.html, "foreach".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.overrides import has_torch_function_unary

# Tensor.backward first sorts tensors of any number and kind in Python, which is most of what a trainer costs in a short
# step. It ends in this function; a torch without it uses the public one.
_run_backward = getattr(torch.autograd.graph, "_engine_run_backward", None)


def backward(objective: Tensor) -> None:
    """objective.backward(), at less cost for a plain scalar. Not for use inside torch.func."""
    plain = not objective.dim() and objective.dtype.is_floating_point
    if _run_backward is None or not plain or has_torch_function_unary(objective):
        torch.autograd.backward(objective)
        return
    # A new tensor of ones each time: a node may pass its input on, and the optimizer may then change it in place.
    ones = torch.ones_like(objective)
    _run_backward((objective,), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def present(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients that exist: the parameters' own tensors, not copies."""
    return [gradient for parameter in parameters if (gradient := parameter.grad) is not None]


def multiply(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply all tensors by one scalar tensor, in place and in each tensor's own dtype."""
    if tensors:
        torch._foreach_mul_(list(tensors), factor)  # pyright: ignore[reportPrivateImportUsage]


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target. Call it without gradients."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))  # pyright: ignore[reportPrivateImportUsage]


def norms(tensors: Sequence[Tensor], kind: float) -> Sequence[Tensor]:
    """The norm of each tensor."""
    return torch._foreach_norm(list(tensors), kind)  # pyright: ignore[reportPrivateImportUsage]


find_non_finite = torch._amp_foreach_non_finite_check_and_unscale_  # pyright: ignore[reportPrivateImportUsage]
"""(gradients of one dtype, found, scale): multiplies by the scale, and sets `found` to 1.0 where one is not finite."""
