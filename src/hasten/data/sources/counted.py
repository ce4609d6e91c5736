"""How many samples a batch holds that a function of the job's own made: it may have left some out.

A plain mean as a loss does not tell what it is a mean of. So it is weighed by the batch's first dimension, and what a
collate function drops, as it drops samples that could not be read, weighs nothing in a window of several microbatches.
torch's own collation makes a batch of all samples, and nobody has to look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def counted(batch: Any, asked: int) -> int:
    """The first dimension of a batch that was made of `asked` samples: its own, or that of the tensors which lie
    directly in it and agree.

    It is `asked` where they do not agree or there are none; where there are more than were asked for, since the first
    dimension is another one then; where a list may as well hold one tensor for each sample; and where that is 0: a rank
    without a share of the global batch.

    So where a collate function makes several rows of each sample, as of two views of a picture, a microbatch weighs as
    many samples as were asked for, also those that it dropped, as long as its rows are more than that. A loss that
    returns hasten.Loss(total, count) tells it exactly.
    """
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else (batch,)
    tensors = [part for part in parts if isinstance(part, Tensor) and part.dim()]
    lengths = {len(tensor) for tensor in tensors}
    one_for_each = len(tensors) == asked and len({(tensor.dtype, tensor.dim()) for tensor in tensors}) == 1
    if len(lengths) != 1 or (one_for_each and isinstance(batch, list | tuple)):
        return asked
    found = lengths.pop()
    return found if 0 < found <= asked else asked
