"""A loader whose batches are there already: what steps take without their loading.

Each batch is handed out as a copy, because a loss may write into it or keep it. The seconds of copying are counted, to
be subtracted. On an accelerator the run copies batches itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import copy
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch

from hasten.doctor.profiling.torch_dispatch import tree_leaves, tree_map

KEPT = 16  # windows, at most


class RepeatedBatches:
    """Takes the place of a run's loader, of which it has all but the batches. kept: whole windows, repeated in turn."""

    def __init__(self, loader: Any, kept: list[Any], *, on_host: bool) -> None:
        self._loader, self._kept, self._on_host = loader, kept, on_host
        self.seconds = 0.0

    def epoch(self, number: int, start_step: int = 0) -> Iterator[Any]:
        """An epoch without an end."""
        return map(self._copied, cycle(self._kept)) if self._on_host else cycle(self._kept)

    def samples_in_words(self, number: int, step: int) -> str:
        """Which samples a batch holds, for messages."""
        return "samples that were read before"

    def _copied(self, microbatch: Any) -> Any:
        begin = time.perf_counter()
        found = microbatch._replace(batch=tree_map(_copy_of, microbatch.batch))
        self.seconds += time.perf_counter() - begin
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def kept_windows(loader: Any, epoch: int, within: int, count: int) -> list[Any]:
    """The microbatches of `count` windows, fewer where the data has fewer: spread over the first `within` of the epoch,
    as batches may be longer at one end than at the other; the first ones of a stream of unknown length."""
    of_an_epoch = loader.steps_per_epoch
    wanted = {*range(count)}
    if of_an_epoch is not None:
        wanted = {(2 * number + 1) * min(within, of_an_epoch) // (2 * count) for number in wanted}
    kept, window = list[Any](), 0
    microbatches = loader.epoch(epoch)
    for each in microbatches:
        if window in wanted:
            kept.append(each)
        window += each.last
        if window > max(wanted):
            break
    del microbatches  # an unfinished iteration keeps workers busy
    return kept


def first_window(kept: list[Any]) -> list[Any]:
    """The microbatches of the first step alone."""
    end = next((number for number, each in enumerate(kept, start=1) if each.last), len(kept))
    return kept[:end]


def enlarged(kept: list[Any], times: int) -> list[Any] | None:
    """Microbatches of so many times the samples, by repeating them. None for batches that are not of tensors and arrays
    with a row for each sample."""
    if not all(_is_in_rows(each) for each in kept):
        return None
    return [
        each._replace(batch=tree_map(partial(_repeated, times=times), each.batch), samples=each.samples * times)
        for each in kept
    ]


def _is_in_rows(microbatch: Any) -> bool:
    shaped = [each for each in tree_leaves(microbatch.batch) if getattr(each, "ndim", 0)]
    return bool(shaped) and all(len(each) == microbatch.samples for each in shaped)


def _repeated(value: Any, times: int) -> Any:
    if isinstance(value, torch.Tensor) and value.dim():
        return torch.cat([value] * times)
    return np.concatenate([value] * times) if isinstance(value, np.ndarray) and value.ndim else value


def _copy_of(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else copy(value)
