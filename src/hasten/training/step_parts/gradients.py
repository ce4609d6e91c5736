"""Gradients between the last backward pass and the update: norm and clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from torch import Tensor
from torch.nn.utils import clip_grad_value_, get_total_norm

from hasten.errors import Misconfigured
from hasten.training.step_parts.skips import everywhere

_IS_SPARSE = attrgetter("is_sparse")

NORMS_THAT_TELL = (1.0, 2.0, math.inf)
"""Kinds of norm that are not finite wherever an element is not. Norms with an extreme power may be finite there."""


def norm(gradients: Sequence[Tensor], kind: float) -> Tensor:
    """The norm of all gradients as one vector; it may overflow where each of them is finite."""
    _refuse_sparse(gradients)
    return everywhere(get_total_norm(gradients, kind))


def clip_value(parameters: Sequence[Tensor], gradients: Sequence[Tensor], most: float) -> None:
    """Clamp every element, in place, to the range from -most to most."""
    _refuse_sparse(gradients)
    if any(gradient.is_complex() for gradient in gradients):
        what = "a gradient is complex, and has no order by which its values could be clipped"
        raise Misconfigured(what, where="Job.clip_value", fix="use clip_norm, which takes their magnitude")
    clip_grad_value_(parameters, most)


def _refuse_sparse(gradients: Sequence[Tensor]) -> None:
    if any(map(_IS_SPARSE, gradients)):
        raise Misconfigured(
            "a gradient is sparse, and torch cannot clip sparse gradients",
            where="clipping",
            fix="build the embedding with sparse=False, or remove clip_norm and clip_value",
        )
