"""Which data sets are known, unread, to draw no random number from the process's global generators.

A data set that draws must be seeded before every sample, which takes time, and must have those generators to itself
while it reads, which processes have and threads have not. A data set that cannot draw needs neither.

It is known of types whose reading runs no code but torch's and Python's own, and of what says it of itself by an
attribute `steady_reason`, a sentence. Everything else may draw; proven_steady.py finds out by reading it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset


def steady_reason(dataset: Any) -> str | None:
    """Why reading it draws no random number; None where it may."""
    # Exact types only: a subclass may do anything when it is read.
    if type(dataset) in (list, tuple, range):
        return f"a {type(dataset).__name__} only holds its samples"
    if type(dataset) in (Tensor, TensorDataset):
        return "its samples are rows of tensors"
    inner = _parts(dataset)
    if inner:
        reasons = [steady_reason(part) for part in inner]
        return reasons[0] if all(reasons) else None
    return getattr(dataset, "steady_reason", None) if _says_of_its_samples(dataset, "steady_reason") else None


def _says_of_its_samples(dataset: Any, member: str) -> bool:
    """Whether its class has the member, and no class derived from that one reads samples in its own way. What an object
    only hands on from another, by __getattr__, is said of the other."""
    owners = type(dataset).__mro__
    own = next((place for place, owner in enumerate(owners) if member in vars(owner)), None)
    reads = next((place for place, owner in enumerate(owners) if "__getitem__" in vars(owner)), len(owners))
    return own is not None and own <= reads


def takes_draws(dataset: Any) -> bool:
    """Whether a data set is given the random numbers of its samples, as ImageFolder is, and draws none itself."""
    # All three, and callable: many a data set has a field `fill`, for what it pads with.
    members = ("filling", "draws", "fill")
    return all(callable(getattr(dataset, name, None)) and _says_of_its_samples(dataset, name) for name in members)


def _parts(dataset: Any) -> list[Any]:
    if type(dataset) is Subset:
        return [dataset.dataset]
    if type(dataset) is ConcatDataset:
        return list(dataset.datasets)
    if type(dataset) is StackDataset:
        return list(dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets)
    return []
