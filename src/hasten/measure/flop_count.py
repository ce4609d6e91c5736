"""Floating-point operations of one sample, forward and backward, by module.

Counted is what torch's own counter counts (torch.utils.flop_counter): matrix products, convolutions and fused
attention, a multiplication and an addition as two. Formulas for fused attention on a CPU are added here.

Not counted: element-wise work, normalisation, softmax, embeddings, loss and optimizer, which are small beside the
products. Recurrent layers, grouped products and operators from outside torch have no formula and are not small: those
that ran are listed in `uncounted`. Fused attention counts as if no key were masked, and checkpointed layers count
twice in the forward direction, because they run twice.

The counter itself fails on some tensors and operators, as on jagged nested tensors. Then nothing is known, and `failed`
gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hasten.measure.torch_operations import TorchDispatchMode

_WITHOUT_FORMULA = frozenset(
    {"_cudnn_rnn", "mkldnn_rnn_layer", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"}
    | {"_grouped_mm", "_scaled_grouped_mm", "_int_mm", "mv", "addmv", "dot", "addbmm", "ger", "addr"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopProfile:
    flops_per_sample: float | None  # None where the counter failed
    by_module: Mapping[str, float]  # of a sample, most first; each with all inside it; "" is the model
    uncounted: tuple[str, ...]  # operators that ran, do much work, and have no formula
    failed: str = ""  # the counter's own error, in its words


def profile_flops(run: Callable[[], object], model: nn.Module, samples: int) -> FlopProfile:
    """Count one call of `run`, which takes `samples` samples through the model, forward and backward.

    `run` needs no optimizer. Only modules called through `model` appear by name. The backward pass of a module whose
    inputs need no gradient may include what ran after it; the sum is exact.

    Where that fails, `run` is called once more without the counter, and raises what is its own error.
    """
    unknown = _WithoutFormula()
    counter = FlopCounterMode(display=False, custom_mapping=_attention_formulas())
    failed = ""
    try:
        with unknown, counter:
            run()
    except Exception as error:  # whatever a formula, or a subclass of tensors, raises under the counter
        failed = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")
    if failed:
        run()
        return FlopProfile(flops_per_sample=None, by_module={}, uncounted=(), failed=failed)
    counts, root = counter.get_flop_counts(), type(model).__name__
    by_operator = {name: counts.get(f"{root}.{name}" if name else root, {}) for name, _ in model.named_modules()}
    by_module = {name: sum(found.values()) / samples for name, found in by_operator.items() if found}
    return FlopProfile(
        flops_per_sample=counter.get_total_flops() / samples,
        by_module=dict(sorted(by_module.items(), key=lambda item: -item[1])),
        uncounted=tuple(sorted(unknown.names)),
    )


class _WithoutFormula(TorchDispatchMode):
    """Collects the operators that ran and have no formula, though they may be most of the work."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        whole = func.name().partition(".")[0]
        namespace, _, name = whole.partition("::")
        is_foreign = namespace not in _NAMESPACES and whole not in _OWN_ATTENTION
        if is_foreign or name in _WITHOUT_FORMULA:
            self.names.add(whole)
        return func(*args, **(kwargs or {}))


_NAMESPACES = ("aten", "prim", "prims", "profiler")  # the last marks an update for torch's own profiler
_OWN_ATTENTION = ("hasten::attention", "hasten::attention_backward")


def _attention_formulas() -> dict[Any, Callable[..., int]]:
    on_cpu, own = "_scaled_dot_product_flash_attention_for_cpu", torch.ops.hasten
    formulas = {on_cpu: _attention_forward, f"{on_cpu}_backward": _attention_backward}
    found = {getattr(torch.ops.aten, name): formula for name, formula in formulas.items()}
    if hasattr(own, "attention"):  # once its kernels are loaded
        found |= {own.attention: _attention_forward, own.attention_backward: _attention_backward}
    return found


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
