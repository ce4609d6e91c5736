"""The arms of the operators' benchmark: one step is an operator's forward pass and its backward pass.

Each operator is written as people write it, one operation of torch for each step of the formula ("composed"); the same
text is given to TorchScript and to torch.compile; torch's own operators and hasten's are called.

All of them run where freed memory stays with the process (`allocator = "keep_freed_memory"`). Where it goes back to
the system, most of an operator's time is the kernel's, which hands out new pages for each result; and how often it
has to is chance, the heap's of that process: one and the same operator took twice as long in one process as in another.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from hasten.techniques.setup import ProcessOptions
from hasten.training.setup.process_options import process_options

WIDTH, CLASSES = 1024, 50_257  # of a row
LENGTH, HEAD = 256, 64  # of what attends, and of a head's rows


def arm(form: str, operator: str, numbers: int, dtype: str) -> Callable[[int], None]:
    """form: in FORMS. operator: in OPERATORS. numbers: elements of the tensor that it works on."""
    keep_freed_memory()
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


@cache
def keep_freed_memory() -> ExitStack:
    """For as long as this process lives, in which the cache holds what would undo it."""
    held = ExitStack()
    for notice in held.enter_context(process_options(ProcessOptions(keep_freed_memory=True))):
        print(notice, flush=True)
    return held


def give_back_memory() -> None:
    """What was freed, to the system: for a process that other arms are to be measured beside."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
    from hasten.kernels.activation.gelu import gelu

    return gelu(x, "tanh")


def composed_exact_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))


def torchs_exact_gelu(x: Tensor) -> Tensor:
    return functional.gelu(x)


def hastens_exact_gelu(x: Tensor) -> Tensor:
    from hasten.kernels.activation.gelu import gelu

    return gelu(x)


def composed_bias_gelu_dropout(x: Tensor, bias: Tensor) -> Tensor:
    kept = (torch.rand_like(x) >= 0.1).to(x.dtype) / 0.9
    return composed_gelu(x + bias) * kept


def torchs_bias_gelu_dropout(x: Tensor, bias: Tensor) -> Tensor:
    return functional.dropout(functional.gelu(x + bias, approximate="tanh"), 0.1)


def hastens_bias_gelu_dropout(x: Tensor, bias: Tensor) -> Tensor:
    from hasten.kernels.activation.bias_gelu_dropout import bias_gelu_dropout

    return bias_gelu_dropout(x, bias, 0.1, approximate="tanh")


def composed_add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    total = x + residual
    centred = total - total.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def torchs_add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x + residual, weight.shape, weight, bias)


def hastens_add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    from hasten.kernels.normalization.add_layer_norm import add_layer_norm

    return add_layer_norm(x, residual, weight, bias)[1]


def targets(scores: Tensor) -> Tensor:
    return torch.arange(scores.shape[0]) * 977 % scores.shape[1]


def composed_cross_entropy(scores: Tensor) -> Tensor:
    shifted = scores - scores.amax(-1, keepdim=True)
    chosen = shifted.gather(-1, targets(scores).unsqueeze(-1)).squeeze(-1)
    return (shifted.exp().sum(-1).log() - chosen).mean()


def torchs_cross_entropy(scores: Tensor) -> Tensor:
    return functional.cross_entropy(scores, targets(scores))


def hastens_cross_entropy(scores: Tensor) -> Tensor:
    from hasten.kernels.softmax.cross_entropy import cross_entropy

    return cross_entropy(scores, targets(scores))


def composed_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]), dim=-1) @ value


def torchs_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value)


def hastens_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    from hasten.kernels.attention.scaled_dot_product_attention import attention

    return attention(query, key, value)


def rows(numbers: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(numbers // WIDTH, WIDTH).to(dtype)]


def rows_and_columns(matrices: int, vectors: int) -> Callable[[int, torch.dtype], list[Tensor]]:
    return lambda numbers, dtype: [
        *(rows(numbers, dtype)[0] for _ in range(matrices)),
        *(torch.randn(WIDTH).to(dtype) for _ in range(vectors)),
    ]


def scores(numbers: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(numbers // CLASSES, CLASSES).to(dtype)]


def heads(numbers: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(1, numbers // LENGTH // HEAD, LENGTH, HEAD).to(dtype) for _ in range(3)]


OPERATORS = {
    "gelu": Operator(made=rows, composed=composed_gelu, torchs=torchs_gelu, hastens=hastens_gelu, moved=5),
    "exact_gelu": Operator(
        made=rows, composed=composed_exact_gelu, torchs=torchs_exact_gelu, hastens=hastens_exact_gelu, moved=5
    ),
    "bias_gelu_dropout": Operator(
        made=rows_and_columns(1, 1),
        composed=composed_bias_gelu_dropout,
        torchs=torchs_bias_gelu_dropout,
        hastens=hastens_bias_gelu_dropout,
        moved=5,
    ),
    "add_layer_norm": Operator(
        made=rows_and_columns(2, 2),
        composed=composed_add_layer_norm,
        torchs=torchs_add_layer_norm,
        hastens=hastens_add_layer_norm,
        moved=7,
    ),
    "cross_entropy": Operator(
        made=scores,
        composed=composed_cross_entropy,
        torchs=torchs_cross_entropy,
        hastens=hastens_cross_entropy,
        moved=3,
    ),
    "attention": Operator(
        made=heads,
        composed=composed_attention,
        torchs=torchs_attention,
        hastens=hastens_attention,
        moved=12,
    ),
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
