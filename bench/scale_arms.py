"""The arms of the benchmark at scale: batches of fifty million samples, at some place of an epoch.

A sample is its own index, so what is measured is what stands between a data set and a training. Every kind of data is
a function that builds it; a further one is one more entry in DATA, and a further order one in ORDERS.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import numpy as np
from bench.endless import endless

from hasten.data.order.sample_order import CHUNK

SAMPLES, BATCH = 50_000_000, 256
STEPS = SAMPLES // BATCH
CHUNK_STEPS = CHUNK // BATCH
STRETCH = 4 * CHUNK_STEPS  # batches from a place on, before another epoch is entered at that place


class Indices:
    """A map-style data set whose batches are read at once."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def indices() -> Any:
    return Indices()


def columns() -> Any:
    """One row, fifty million times in the same place: gathered, and still no memory."""
    return np.broadcast_to(np.zeros(1, dtype=np.int64), (SAMPLES,))


DATA: dict[str, Callable[[], Any]] = {"indices": indices, "columns": columns}


def arm(data: str, shuffle: bool, share: float) -> Callable[[int], None]:
    """Batches from `share` of the way through an epoch on."""
    loader = loader_of(DATA[data](), shuffle)
    numbers = count()
    return endless(lambda: islice(loader.epoch(next(numbers), place(share)), STRETCH))


def order_arm(order: str, shuffle: bool, share: float) -> Callable[[int], None]:
    """An order alone, without a loader around it."""
    sought, numbers = ORDERS[order](shuffle), count()

    def epoch() -> Iterator[Any]:
        number, first = next(numbers), place(share)
        return (
            sought.indices(number, step * BATCH, (step + 1) * BATCH)
            for step in range(first, min(first + STRETCH, STEPS))
        )

    return endless(epoch)


def whole(shuffle: bool) -> Any:
    from hasten.data.order.sample_order import Order

    return Order(SAMPLES, 0, shuffle)


def shards(shuffle: bool) -> Any:
    """Of five thousand shards with ten thousand samples each."""
    from hasten.data.shards.shard_order import ShardOrder

    return ShardOrder(np.full(5_000, SAMPLES // 5_000), 4096, 0, shuffle)


ORDERS: dict[str, Callable[[bool], Any]] = {"whole": whole, "shards": shards}


def place(share: float) -> int:
    """A step at which a chunk of the order begins, so that a stretch has as many of them at every place."""
    return round(share * ((STEPS - STRETCH) // CHUNK_STEPS)) * CHUNK_STEPS


def loader_of(data: Any, shuffle: bool) -> Any:
    from hasten.data.loading.batch_loader import TrainLoader
    from hasten.data.loading.loader_options import LoaderOptions
    from hasten.data.sources.job_data import source_of

    source = source_of(data, field="train")
    return TrainLoader(source, batch_size=BATCH, options=LoaderOptions(), seed=0, shuffle=shuffle)


def start_up(data: str, shuffle: bool, share: float) -> dict[str, float]:
    """Seconds from nothing but the imports to the first batch, and by how many bytes the process grew meanwhile."""
    import psutil

    import hasten.data.loading.batch_loader  # noqa: F401 - loads torch, which every program of ours has loaded by then

    process = psutil.Process()
    before = process.memory_info().rss
    begin = time.perf_counter()
    loader = loader_of(DATA[data](), shuffle)
    batches = loader.epoch(0, place(share))
    next(batches)
    return {"seconds": time.perf_counter() - begin, "bytes": process.memory_info().rss - before}


if __name__ == "__main__":
    print(json.dumps(start_up(**json.loads(sys.argv[1]))))
