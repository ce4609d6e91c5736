"""A loss computes with a layer's parameters by calling the layer, which gathers them; or it is refused.

What it takes from a layer itself, for a penalty on weights for instance, are parts. Torch computes with them too, and
what comes out, or what should be added to it, is of another kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from hasten.errors import JobError
from hasten.parallel import differentiated_inside

_MIXED = "mixed torch.Tensor and DTensor"  # torch's words


def through_layers(root: nn.Module, given: Any, is_freed: Callable[[], bool]) -> Any:
    """What the loss in this root returns. Raises JobError for a loss that takes parameters from a layer without calling
    it. is_freed: whether what the root gathers for all of its pass is in parts again before its end."""
    try:
        differentiated, unseen = root(given)
    except RuntimeError as error:
        if _MIXED not in str(error):
            raise
        raise (differentiated_inside.refused() if is_freed() else _refused()) from error
    if isinstance(differentiated, DTensor):
        raise _refused()
    return unseen.with_total(differentiated)


def _refused() -> JobError:
    what = "computes with a layer's parameters, and does not call the layer, which gathers them"
    fix = "call all layers, and leave a penalty on weights to the optimizer (weight_decay); or leave `shard` out"
    return JobError("loss", what, fix)
