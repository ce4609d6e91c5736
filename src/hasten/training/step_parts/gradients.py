"""Gradients between the last backward pass and the update: finite check, norm, clipping.

A non-finite value is found on the device, in one pass over all gradients without a host sync: the norm's pass where a
norm is needed, else a fused one. Which parameter's gradient it was is asked later, when the device has overwritten it;
so the largest magnitude of each gradient is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm

from hasten.errors import Misconfigured

_IS_SPARSE = attrgetter("is_sparse")
_find_non_finite = torch._amp_foreach_non_finite_check_and_unscale_  # pyright: ignore[reportPrivateImportUsage]


def present(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients that exist: the parameters' own tensors, not copies."""
    return [gradient for parameter in parameters if (gradient := parameter.grad) is not None]


def multiply(gradients: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply all gradients by one scalar tensor, in place and in each gradient's own dtype."""
    if gradients:
        torch._foreach_mul_(list(gradients), factor)  # pyright: ignore[reportPrivateImportUsage]


class FiniteCheck:
    """Tells whether any gradient holds a NaN or an infinity: a tensor of 0.0 or 1.0 on the device.

    Uses the pass that torch.amp.GradScaler runs for its own check, with a scale of one: it is fused over all gradients,
    exists for every device, and leaves finite values to the bit. Its output is also what fused optimizers read.
    """

    def __init__(self, parameters: Sequence[Tensor], device: torch.device) -> None:
        self._alike = len({parameter.dtype for parameter in parameters}) == 1  # and, so far, none was sparse
        self._one, self._found = torch.ones((), device=device), torch.zeros((), device=device)

    def __call__(self, gradients: list[Tensor]) -> Tensor:
        """The answer to these gradients of the parameters; it holds until the next call or clear()."""
        if self._alike and gradients:
            try:
                _find_non_finite(gradients, self._found, self._one)
                return self._found
            except RuntimeError:  # it refuses sparse gradients; to look for them first would cost a fifth of it
                self._alike = False
        for alike in _dense_by_dtype(gradients):
            _find_non_finite(alike, self._found, self._one)
        return self._found

    def clear(self) -> None:
        """Forget an answer that was 1, or may have been: the pass only ever raises it."""
        self._found.zero_()


def _dense_by_dtype(gradients: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    """The gradients, sparse ones by their values, grouped as the fused pass needs them."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(gradient.dtype, []).append(dense(gradient))
    return groups.values()


def dense(gradient: Tensor) -> Tensor:
    """The gradient itself, or the values of a sparse one."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


NORMS_THAT_TELL = (1.0, 2.0, math.inf)
"""Kinds of norm that are not finite wherever an element is not; with an extreme power others may be finite all the
same."""


def norm(gradients: Sequence[Tensor], kind: float) -> Tensor:
    """The norm of all gradients as one vector; it may overflow where each of them is finite."""
    _refuse_sparse(gradients)
    return everywhere(get_total_norm(gradients, kind))


def everywhere(scalar: Tensor) -> Tensor:
    """Of all parts, where ranks hold parts: they all ask for it. Itself where this rank holds all."""
    whole: Callable[[], Tensor] | None = getattr(scalar, "full_tensor", None)
    return scalar if whole is None else whole()


def clip_norm(parameters: Sequence[Tensor], most: float, measured: Tensor) -> None:
    """Scale all gradients, in place, so that their norm, as it was measured, becomes `most` where it is more."""
    clip_grads_with_norm_(parameters, most, measured)


def clip_value(parameters: Sequence[Tensor], gradients: Sequence[Tensor], most: float) -> None:
    """Cut every element, in place, to the range from -most to most."""
    _refuse_sparse(gradients)
    clip_grad_value_(parameters, most)


def _refuse_sparse(gradients: Sequence[Tensor]) -> None:
    if any(map(_IS_SPARSE, gradients)):
        raise Misconfigured(
            "a gradient is sparse, and torch cannot clip those",
            where="clipping",
            fix="build the embedding with sparse=False, or leave clip_norm and clip_value out",
        )


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
