"""A batch of another size, made of a batch's own samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.data.loading.device_transfer import map_tensors
from hasten.errors import JobError


def few_samples(batch: Any, samples: int) -> Any:
    """So many of the first, which come again where the batch has fewer. Its samples are the rows of its first tensor,
    and what has as many rows is cut with it.

    Raises JobError where the batch holds no tensor that has rows.
    """
    rows = list[int]()

    def note(tensor: Tensor) -> Tensor:
        rows.extend(tensor.shape[:1])
        return tensor

    map_tensors(batch, note)
    if not rows or not rows[0]:
        raise JobError(
            "train",
            "gives batches in which no tensor has a row for each sample, so that one of another size cannot be cut",
            "give batches of tensors, in tuples, lists, dictionaries or dataclasses",
        )
    chosen = torch.arange(samples) % rows[0]
    return map_tensors(batch, lambda tensor: tensor[chosen] if tensor.shape[:1] == (rows[0],) else tensor)
