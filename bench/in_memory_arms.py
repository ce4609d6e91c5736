"""The arms of the in-memory benchmark: shuffled batches of tensors that are in memory already.

Every arm delivers the same thing: in each epoch every sample once, in an order newly drawn, as batches of 256 of its
own memory; the last batch of an epoch is smaller. Nothing is done with a batch, so what is measured is the loader.

The data is random. No loader looks at a value, so only its shape, its type and its place in memory matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import torch
from bench.endless import Epoch, endless
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

BATCH = 256
SAMPLES = {"rows": 1_000_000, "pictures": 50_000}

Columns = tuple[Tensor, Tensor]


def arm(loader: str, data: str) -> Callable[[int], None]:
    """loader: a name in LOADERS. data: a name in SAMPLES."""
    return endless(LOADERS[loader](columns(data, SAMPLES[data])))


def columns(data: str, samples: int) -> Columns:
    """Random samples and labels: twenty float32 a row, or pictures of CIFAR-10's size."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (samples,), generator=generator)
    if data == "rows":
        return torch.randn(samples, 20, generator=generator), labels
    return torch.randint(256, (samples, 3, 32, 32), dtype=torch.uint8, generator=generator), labels


# ── torch's DataLoader ──────────────────────────────────────────────────────────────────────────────────────────────


def dataloader(data: Columns) -> Epoch:
    """As its documentation begins."""
    loader = DataLoader(TensorDataset(*data), batch_size=BATCH, shuffle=True)
    return lambda: loader


def dataloader_1_worker(data: Columns) -> Epoch:
    return _with_workers(data, 1)


def dataloader_2_workers(data: Columns) -> Epoch:
    return _with_workers(data, 2)


def _with_workers(data: Columns, workers: int) -> Epoch:
    """Workers that stay, and more batches ahead than the two of the default."""
    loader = DataLoader(
        TensorDataset(*data),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        prefetch_factor=8,
    )
    return lambda: loader


def dataloader_batched(data: Columns) -> Epoch:
    """The best that its flags allow: a BatchSampler as the sampler, so that the tensors are asked for a whole batch."""
    dataset = TensorDataset(*data)
    batches = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    return lambda: loader


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def by_hand(data: Columns) -> Epoch:
    """Three lines that many training scripts have."""

    def epoch() -> Iterator[Columns]:
        values, labels = data
        order = torch.randperm(len(labels))
        for start in range(0, len(labels), BATCH):
            chosen = order[start : start + BATCH]
            yield values[chosen], labels[chosen]

    return epoch


def by_hand_selected(data: Columns) -> Epoch:
    """The same with index_select, which copies whole rows and is the fastest that torch has for it."""
    return lambda: _selected(data)


def _selected(data: Columns) -> Iterator[Columns]:
    values, labels = data
    order = torch.randperm(len(labels), device=labels.device)
    for start in range(0, len(labels), BATCH):
        chosen = order[start : start + BATCH]
        yield values.index_select(0, chosen), labels.index_select(0, chosen)


# ── hasten ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def hasten(data: Columns) -> Epoch:
    """Its loader as a training has it: every epoch can be entered at any batch, and its order follows from a seed."""
    from hasten.data.loading.batch_loader import TrainLoader
    from hasten.data.loading.loader_options import LoaderOptions
    from hasten.data.sources.job_data import source_of

    loader = TrainLoader(source_of(data, field="train"), batch_size=BATCH, options=LoaderOptions(), seed=0)
    numbers = count()
    return lambda: (microbatch.batch for microbatch in loader.epoch(next(numbers)))


# ── on the device: everything lies there already, and so does every batch ───────────────────────────────────────────


def by_hand_on_device(data: Columns) -> Epoch:
    """The best loader for data on an accelerator: the order is drawn there too, and nothing crosses the bus."""
    placed = _placed(data)
    return lambda: _selected(placed)


def hasten_on_device(data: Columns) -> Epoch:
    return hasten(_placed(data))


def _placed(data: Columns) -> Columns:
    values, labels = data
    return values.to("cuda"), labels.to("cuda")


LOADERS: dict[str, Callable[[Columns], Epoch]] = {
    loader.__name__: loader
    for loader in (
        dataloader,
        dataloader_1_worker,
        dataloader_2_workers,
        dataloader_batched,
        by_hand,
        by_hand_selected,
        hasten,
        by_hand_on_device,
        hasten_on_device,
    )
}
ON_DEVICE = ("by_hand_on_device", "hasten_on_device")
