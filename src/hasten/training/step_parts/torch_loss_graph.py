"""Whether a loss that is taken for a mean is a sum over the batch, as its autograd graph shows.

Only plain forms are recognised: `.sum()` or torch's reduction="sum" as the last operation, or as a term of the last
additions. Attributes of graph nodes that begin with `_saved_` are torch's way to read what a node saved; the names were
checked on torch 2.13. Where one is missing, there is no warning.
Source: https://docs.pytorch.org/docs/stable/notes/autograd.html, "Saved tensors".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from hasten.data.loading.device_transfer import map_tensors
from hasten.facts.job import Loss

SUMMED = (
    "Job.loss gives a sum over the batch where a mean belongs: gradients grow with the batch. "
    "Return losses.mean(), or hasten.Loss(losses.sum(), len(losses))"
)
_REDUCED_BY_SUM = 2  # torch's number of reduction="sum"
_PASSED = {"NegBackward0", "ToCopyBackward0", "SqueezeBackward0", "ViewBackward0", "CloneBackward0", "_DDPSinkBackward"}
# In Python, products are MulBackward0. Label smoothing is a sum of products by numbers that torch makes itself.
_ADDED = {"AddBackward0", "MulBackward1"}
_MAY_BE_SHARES = ("Mul", "Div", "Mean", "Stack")  # how the names of operations begin that make parts of a mean


def is_summed(returned: Loss | Tensor, batch: Any) -> bool:
    """returned: by the job's loss, before its backward pass. batch: that it was computed from; the first dimension of
    its tensors is the number of samples."""
    samples = set[int]()
    map_tensors(batch, lambda tensor: samples.add(tensor.size(0)) or tensor if tensor.dim() else tensor)
    samples -= {0, 1}
    try:
        return bool(samples) and any(_is_sum(node, alone, samples) for node, alone in _terms(_of_mean(returned)))
    except RuntimeError:  # a node of another library, or one whose saved tensors were freed
        return False


def _of_mean(returned: Loss | Tensor) -> Any:
    """The operation that made what is taken for a mean; None where there is none."""
    if isinstance(returned, Tensor):
        return returned.grad_fn
    product: Any = returned.total.grad_fn
    factor = getattr(product, "_saved_other", None)
    if isinstance(factor, Tensor) and factor.is_cpu and isinstance(returned.count, int) and factor == returned.count:
        return product.next_functions[0][0]  # mean × count, as hasten.supervised has it of a function it does not know
    return None


def _terms(root: Any) -> Iterator[tuple[Any, bool]]:
    """The operations whose results are added to the loss, each with whether it is the only one."""
    waiting, seen = [(root, True)], {None}
    while waiting:
        node, alone = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if (name := node.name()) in _PASSED | _ADDED:
            waiting += [(each, alone and name in _PASSED) for each, _ in node.next_functions]
        else:
            yield node, alone


def _is_sum(node: Any, alone: bool, samples: set[int]) -> bool:
    if getattr(node, "_saved_reduction", None) == _REDUCED_BY_SUM:
        return _has_samples(node._saved_self.shape, samples)
    if not node.name().startswith("SumBackward"):
        return False
    summed = node.next_functions[0][0]
    if getattr(summed, "_saved_reduction", None) == 0:  # one loss for each item
        return _has_samples(summed._saved_self.shape, samples)
    if summed.name().startswith(_MAY_BE_SHARES):
        return False
    # What is added to something else may be a sum over weights, which can have as many rows as the batch has samples.
    return alone and not samples.isdisjoint(node._saved_self_sym_sizes)


def _has_samples(shape: Any, samples: set[int]) -> bool:
    """Whether the first dimension is of samples, or of the items of all samples, such as tokens."""
    return bool(shape) and any(shape[0] % each == 0 for each in samples)
