"""The arms of the operators' benchmark: one step is an operator's forward pass and its backward pass.

Each operator is written as people write it, one operation of torch for each step of the formula ("composed"); the same
text is given to TorchScript and to torch.compile; torch's own operators and hasten's are called.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

WIDTH = 1024  # of a row


def arm(form: str, operator: str, numbers: int, dtype: str) -> Callable[[int], None]:
    """form: in FORMS. operator: in OPERATORS. numbers: elements of the tensor that it works on."""
    chosen = OPERATORS[operator]
    torch.manual_seed(0)
    leaves = [each.requires_grad_() for each in chosen.made(numbers, getattr(torch, dtype))]
    if form == "copy":
        return _copied(leaves[0].detach(), chosen.moved)
    compute = FORMS[form](chosen)
    upstream = torch.randn_like(compute(*leaves).detach())

    def window(steps: int) -> None:
        for _ in range(steps):
            torch.autograd.grad(compute(*leaves), leaves, upstream)

    return window


def _copied(tensor: Tensor, moved: int) -> Callable[[int], None]:
    """As many bytes as the operator has to read and write, from memory that is there to memory that is there."""
    places = [torch.empty_like(tensor) for _ in range(moved // 2)]
    half = torch.empty_like(tensor.flatten()[: tensor.numel() // 2 * (moved % 2)])

    def window(steps: int) -> None:
        for _ in range(steps):
            for each in places:
                each.copy_(tensor)
            half.copy_(tensor.flatten()[: half.numel()])

    return window


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """made: (numbers, dtype) -> what is differentiated. moved: tensors of that size that a forward and a backward pass
    have to read or write, once each."""

    made: Callable[[int, torch.dtype], list[Tensor]]
    composed: Callable[..., Tensor]
    torchs: Callable[..., Tensor]
    hastens: Callable[..., Tensor]
    moved: int


def composed_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def torchs_gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def hastens_gelu(x: Tensor) -> Tensor:
    from hasten.kernels.gelu import gelu

    return gelu(x, "tanh")


def rows(numbers: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(numbers // WIDTH, WIDTH).to(dtype)]


OPERATORS = {
    "gelu": Operator(made=rows, composed=composed_gelu, torchs=torchs_gelu, hastens=hastens_gelu, moved=5),
}


def torchscript(operator: Operator) -> Callable[..., Tensor]:
    return torch.jit.script(operator.composed)


def compiled(operator: Operator) -> Callable[..., Tensor]:
    return torch.compile(operator.composed)


FORMS: dict[str, Callable[[Operator], Callable[..., Tensor]]] = {
    "composed": lambda operator: operator.composed,
    "torchscript": torchscript,
    "compiled": compiled,
    "torch": lambda operator: operator.torchs,
    "hasten": lambda operator: operator.hastens,
}
