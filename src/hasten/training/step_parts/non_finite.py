"""Which gradient, or which weight, is not finite: looked for once it is known that one is not.

A gradient that the device has judged is gone by the time that the host hears of it. So its size is kept, a scalar for
each parameter, until then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from hasten.training.step_parts.gradients import dense, everywhere

Named = Iterable[tuple[str, Tensor]]


def gradient_sizes(parameters: Named) -> list[tuple[str, Tensor]]:
    """The magnitude of the largest element of every parameter's gradient, by name; not finite where one element is not.

    On the device: nothing waits, and the gradients themselves can be forgotten.
    """
    present = [(name, dense(parameter.grad)) for name, parameter in parameters if parameter.grad is not None]
    whole = [(name, gradient) for name, gradient in present if gradient.numel()]  # nothing has no largest element
    if not whole:
        return []
    names, gradients = zip(*whole, strict=True)
    sizes = torch._foreach_norm(gradients, math.inf)  # pyright: ignore[reportPrivateImportUsage]
    return list(zip(names, sizes, strict=True))


def non_finite_sizes(sizes: Sequence[tuple[str, Tensor]]) -> list[str]:
    """The names of those that are not finite, in their order. Waits for the device."""
    if not sizes:
        return []
    finite = everywhere(torch.stack([size.isfinite() for _, size in sizes])).tolist()
    return [name for (name, _), is_finite in zip(sizes, finite, strict=True) if not is_finite]


def non_finite_weights(weights: Named) -> list[str]:
    """The names of those that hold a NaN or an infinity, in their order. Waits for the device.

    A sum is the fastest look at a tensor, and is finite only where every element is. What overflowed it is looked at
    again.
    """
    tensors = dict(weights)
    suspects = non_finite_sizes([(name, tensor.detach().sum()) for name, tensor in tensors.items()])
    return [name for name in suspects if not tensors[name].isfinite().all()]
