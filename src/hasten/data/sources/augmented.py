"""A data set in two parts: samples that are always the same, and what is done to each of them at random.

    train=hasten.Augmented(Photos("photos/train"), random_crop_and_flip)

The first part, the *steady* one, can be cached on disk (the technique `cache`) without freezing the second. Any
map-style data set may say the same by two members: the property `steady` and the method `with_steady`, which gives the
same data set on top of another steady part. One that draws no random number from the process's generators says so by an
attribute `steady_reason`, a sentence; then it needs no seed before a sample, and threads can read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset


class Augmented:
    """A map-style data set: sample i is transform(dataset[i]).

    dataset: map-style; its sample i is always the same.
    transform: may draw random numbers, from torch's, NumPy's or Python's global generator, and may change its argument
        in place.
    version: raise it where samples change in a way that the key of a cache does not see, as by another module: a cache
        of another version is not used.
    """

    def __init__(self, dataset: Any, transform: Callable[[Any], Any], *, version: int = 0) -> None:
        self.dataset, self.transform, self.version = dataset, transform, version
        self.steady = dataset  # the part whose samples are always the same
        self.sample_order = getattr(dataset, "sample_order", None)  # where it has one of its own

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.dataset[index])

    def with_steady(self, replacement: Any) -> Augmented:
        """The same transform on top of another steady part."""
        return Augmented(replacement, self.transform, version=self.version)


@dataclass(frozen=True, slots=True)
class Seam:
    """The steady part of a data set, and how to rebuild the data set on top of a replacement for it."""

    steady: Any
    rebuilt: Callable[[Any], Any]
    whole: bool = False  # nothing is random: every sample is always the same
    version: int = 0  # of the steady part


def seam_of(dataset: Any) -> Seam | None:
    """The seam of a data set, also under Subset (random_split); None where it does not say one. A data set that is
    known to draw nothing is steady as a whole."""
    if type(dataset) is Subset:
        # The steady part is that of the whole data set: what lies around it may count on every index.
        inner = seam_of(dataset.dataset)
        return inner and replace(inner, rebuilt=lambda steady: Subset(inner.rebuilt(steady), dataset.indices))
    if callable(getattr(dataset, "with_steady", None)) and hasattr(dataset, "steady"):
        return Seam(dataset.steady, dataset.with_steady, version=getattr(dataset, "version", 0))
    return None if steady_reason(dataset) is None else Seam(dataset, lambda steady: steady, whole=True)


def steady_reason(dataset: Any) -> str | None:
    """Why reading it draws no random number; None where it may."""
    # Exact types only: a subclass may do anything when it is read.
    if type(dataset) in (list, tuple, range):
        return f"a {type(dataset).__name__} only holds its samples"
    if type(dataset) in (Tensor, TensorDataset):
        return "its samples are rows of tensors"
    inner = parts_of_dataset(dataset)
    if inner:
        reasons = [steady_reason(part) for part in inner]
        return reasons[0] if all(reasons) else None
    return getattr(dataset, "steady_reason", None) if _applies_to_samples(dataset, "steady_reason") else None


def takes_draws(dataset: Any) -> bool:
    """Whether a data set is given the random numbers of its samples, as ImageFolder is, and draws none itself."""
    # All three, and callable: many a data set has a field `fill`, for what it pads with.
    members = ("filling", "draws", "fill")
    return all(callable(getattr(dataset, name, None)) and _applies_to_samples(dataset, name) for name in members)


def parts_of_dataset(dataset: Any) -> list[Any]:
    """The data sets that one of torch's own wrappers reads from; empty for any other data set."""
    if type(dataset) is Subset:
        return [dataset.dataset]
    if type(dataset) is StackDataset and isinstance(dataset.datasets, dict):
        return list(dataset.datasets.values())
    return list(dataset.datasets) if type(dataset) in (ConcatDataset, StackDataset) else []


def begin_epoch(dataset: Any, epoch: int) -> None:
    """Call `set_epoch`, as torch's samplers have it, on a data set that has one, and on those that it reads from."""
    if callable(getattr(dataset, "set_epoch", None)):
        dataset.set_epoch(max(epoch, 0))  # an evaluation has a number below zero
    for part in parts_of_dataset(dataset):
        begin_epoch(part, epoch)


def _applies_to_samples(dataset: Any, member: str) -> bool:
    """Whether its class has the member, and no class derived from that one reads samples in its own way."""
    owners = type(dataset).__mro__
    own = next((place for place, owner in enumerate(owners) if member in vars(owner)), None)
    reads = next((place for place, owner in enumerate(owners) if "__getitem__" in vars(owner)), len(owners))
    return own is not None and own <= reads
