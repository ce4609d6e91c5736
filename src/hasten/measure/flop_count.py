"""Floating-point operations of one sample, forward and backward, by module.

Counted is what torch's own counter counts (torch.utils.flop_counter): matrix products, convolutions and fused
attention, a multiplication and an addition as two. Formulas for fused attention on a CPU are added here.

Not counted: element-wise work, normalisation, softmax, embeddings, loss and optimizer, which are small beside the
products. Recurrent layers, grouped products and operators from outside torch have no formula and are not small: those
that ran are listed in `uncounted`. Fused attention counts as if no key were masked, and checkpointed layers count
twice in the forward direction, because they run twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from hasten.errors import InvalidMeasurement

_WITHOUT_FORMULA = frozenset(
    {"_cudnn_rnn", "mkldnn_rnn_layer", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"}
    | {"_grouped_mm", "_scaled_grouped_mm", "_int_mm", "mv", "addmv", "dot", "addbmm", "ger", "addr"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleFlops:
    module: str  # as in model.named_modules()
    flops_per_sample: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopProfile:
    flops_per_sample: float
    by_module: tuple[ModuleFlops, ...]  # most first; each with all inside it, so a parent counts its children again
    uncounted: tuple[str, ...]  # operators that ran, do much work, and have no formula


def profile_flops(run: Callable[[], object], model: nn.Module, samples: int) -> FlopProfile:
    """Count one call of `run`, which takes `samples` samples through the model, forward and backward.

    `run` needs no optimizer. Only modules called through `model` appear by name. The backward pass of a module whose
    inputs need no gradient may include what ran after it; the sum is exact. Raises InvalidMeasurement when samples is
    not positive.
    """
    if samples < 1:
        raise InvalidMeasurement(
            f"the run takes {samples} samples", fix="say how many samples one call takes: 1 or more"
        )
    formulas = _attention_on_cpu()
    unknown = _WithoutFormula({operator._qualified_op_name for operator in formulas})
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with unknown, counter:
        run()
    counts = counter.get_flop_counts()
    root = type(model).__name__
    by_name = {name: counts.get(f"{root}.{name}" if name else root, {}) for name, _ in model.named_modules()}
    modules = [
        ModuleFlops(module=name, flops_per_sample=sum(by_operator.values()) / samples)
        for name, by_operator in by_name.items()
        if by_operator
    ]
    return FlopProfile(
        flops_per_sample=counter.get_total_flops() / samples,
        by_module=tuple(sorted(modules, key=lambda module: -module.flops_per_sample)),
        uncounted=tuple(sorted(unknown.names)),
    )


class _WithoutFormula(TorchDispatchMode):
    """Collects the operators that ran and have no formula, though they may be most of the work."""

    def __init__(self, known: set[str]) -> None:
        super().__init__()
        self.names, self._known = set[str](), known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = func._schema.name.partition("::")
        if func._schema.name in self._known:
            return func(*args, **(kwargs or {}))
        if namespace not in ("aten", "prim", "prims") or name in _WITHOUT_FORMULA:
            self.names.add(f"{namespace}::{name}")
        return func(*args, **(kwargs or {}))


def _attention_on_cpu() -> dict[Any, Callable[..., int]]:
    aten = torch.ops.aten
    formulas = {
        "_scaled_dot_product_flash_attention_for_cpu": _attention_forward,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    }
    found = {getattr(aten, name): formula for name, formula in formulas.items()}
    own = {"attention": _attention_forward, "attention_backward": _attention_backward}
    return found | {
        getattr(torch.ops.hasten, name): formula for name, formula in own.items() if hasattr(torch.ops.hasten, name)
    }


def _attention_forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Two products: scores, and scores with values. Shapes (batch, heads, length, width)."""
    batch, heads, queries, width = query
    keys, value_width = value[-2:]
    return 2 * batch * heads * queries * keys * (width + value_width)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Five products: the scores again, and the gradients of values, scores, queries and keys."""
    batch, heads, queries, width = query
    keys, value_width = value[-2:]
    return 2 * batch * heads * queries * keys * (3 * width + 2 * value_width)
