"""What a job's loss function returns: a sum, and how many items it sums over.

A mean hides its denominator, and every wrong accumulation comes from that: means of unequal batches do not average to
the mean of the whole. With the sum and the count apart, a window of microbatches over any number of ranks gives exactly
the large batch's mean, whatever was padded, ignored or left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one microbatch.

    total: scalar tensor, the sum of the items' losses. It carries the graph.
    count: how many items were summed (samples, valid tokens, …): a number, or a scalar tensor on the total's device,
        without a graph. Zero is allowed: such a microbatch weighs nothing. Below 0, NaN and infinity are refused.
    auxiliary: scalar tensor or None; a term that is already a mean over the microbatch's samples (load balancing,
        regularisation). It keeps its own scaling: microbatches are weighted by their number of samples.
    prediction, target: what the job's metrics are updated with, 16-bit tensors in float32; None where there are no
        metrics.
    """

    total: Tensor
    count: Tensor | float
    auxiliary: Tensor | None = None
    prediction: Any = None
    target: Any = None
