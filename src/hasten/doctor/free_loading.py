"""A loader whose batches are there already: what a run is without its loading."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import torch
from torch.utils._pytree import tree_map

KEPT = 4  # windows


class FreeLoading:
    """Of a training's loader: in all else than its batches it is that one. kept: whole windows, taken in turn."""

    def __init__(self, loader: Any, kept: list[Any]) -> None:
        self._loader, self._kept = loader, kept

    def epoch(self, number: int, start_step: int = 0) -> Iterator[Any]:
        """Without an end: an epoch of which nobody waits for a turn."""
        return cycle(self._kept)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def first_windows(loader: Any, epoch: int) -> list[Any]:
    """The microbatches of a few windows, read now. Those of a data set of fewer are fewer."""
    kept, windows = list[Any](), 0
    microbatches = loader.epoch(epoch)
    for each in microbatches:
        kept.append(each)
        windows += each.last
        if windows == KEPT:
            break
    del microbatches  # an iteration that is under way holds workers
    return kept


def first_window(kept: list[Any]) -> list[Any]:
    """The microbatches of the first step alone."""
    end = next((number for number, each in enumerate(kept, start=1) if each.last), len(kept))
    return kept[:end]


def enlarged(kept: list[Any], times: int) -> list[Any]:
    """Microbatches of so many times the samples, each of them there again and again."""
    return [each._replace(batch=_repeated(each, times), samples=each.samples * times) for each in kept]


def _repeated(microbatch: Any, times: int) -> Any:
    def repeated(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() and len(value) == microbatch.samples:
            return torch.cat([value] * times)
        return value

    return tree_map(repeated, microbatch.batch)
