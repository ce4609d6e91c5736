"""Data sets that draw random numbers, and what loaders make of them as plain numbers that tests can compare."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from hasten.data.loading.batch_loader import Microbatch, TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.job_data import source_of

HERE = LoaderOptions()
ONE_WORKER = LoaderOptions(workers=1)
TWO_WORKERS = LoaderOptions(workers=2)
STAYING = LoaderOptions(workers=2, prefetch_factor=3, persistent_workers=True)


class Drawing(Dataset[Any]):
    """Every sample holds its index and six numbers from the three global generators."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return index, drawn()


class DrawingTogether(Drawing):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class DrawingStream(IterableDataset[Any]):
    """Shuffles itself when it is opened, and draws for every sample."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        order = random.sample(range(self.count), self.count)
        return ((index, drawn()) for index in order)


class Buckets:
    """A batch sampler of 22 samples: six batches of unlike sizes, drawn from two of the global generators."""

    SIZES = (5, 3, 6, 1, 4, 3)

    def __iter__(self) -> Any:
        order = torch.randperm(sum(self.SIZES)).tolist()
        for size in np.random.permutation(self.SIZES).tolist():
            yield [order.pop() for _ in range(size)]


def drawn() -> torch.Tensor:
    numbers = [torch.rand(()).item(), torch.randn(()).item(), np.random.rand(), np.random.randn()]
    return torch.tensor([*numbers, random.random(), random.gauss(0, 1)], dtype=torch.float64)


def noisy(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """A collate function that draws too, as mixing two images would."""
    return torch.tensor([index for index, _ in samples]), torch.stack([draws for _, draws in samples] + [drawn()])


def loader_of(data: Any, *, collate: Any = None, options: LoaderOptions = HERE, **arguments: Any) -> TrainLoader:
    return TrainLoader(
        source_of(data, field="train", collate=collate),
        **({"batch_size": 4, "options": options, "seed": 7} | arguments),
    )


def epoch_of(data: Any, number: int = 0, start_step: int = 0, **arguments: Any) -> list[Microbatch]:
    loader = loader_of(data, **arguments)
    found = list(loader.epoch(number, start_step))
    loader.close()
    return found


def flat(value: Any) -> list[Any]:
    """A batch as plain numbers, bit for bit."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [flat(item) for item in value]


def content(found: Iterable[Microbatch]) -> list[Any]:
    return [(flat(one.batch), one.samples, one.last) for one in found]


def indices(found: Iterable[Microbatch]) -> list[int]:
    """Of all samples that count, in order; a batch's first part is its indices."""
    return [index for one in found for index in one.batch[0].tolist()[: one.samples]]


def steps(found: Iterable[Microbatch]) -> list[list[int]]:
    """The same, a list for each optimizer step."""
    result: list[list[int]] = [[]]
    for one in found:
        result[-1] += indices([one])
        if one.last:
            result.append([])
    assert result.pop() == []
    return result


def columns(count: int) -> tuple[torch.Tensor]:
    return (torch.arange(count),)
