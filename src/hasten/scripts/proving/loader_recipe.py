"""What a script's loader draws at random, read in the process of a trial behind its steps: the order of samples, and
what transforms make of one sample that is drawn again and again. Unknown is what takes long, or fails in another use of
the data set than the script's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from hasten.scripts.running.script_seeds import use_seed
from hasten.tuning.proof.recipe_proof import UNKNOWN

EPOCHS, BATCHES = 2, 2  # of each, from two workers where there are as many
SAMPLES = 16  # of a batch: by chance, two of them are not equal
LONGEST_SAMPLE_SECONDS, MOST_SAMPLE_BYTES = 0.1, 4 << 20
_SHOWN = 4  # indices


def loader_recipe(loader: DataLoader[Any]) -> dict[str, list[str]]:
    """As of recipe.py: each with one value."""
    if isinstance(loader.dataset, IterableDataset):
        return {}
    use_seed()
    return {
        "order of the samples": [_known(lambda: "; then ".join(_orders(loader)))],
        "one sample drawn again and again": [_known(lambda: _drawn_again(loader))],
    }


def _known(read: Callable[[], str]) -> str:
    try:
        return read()
    except Exception:  # of the user's data set, sampler or collate function
        return UNKNOWN


def _orders(loader: DataLoader[Any]) -> list[str]:
    indices: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    for generator in (loader.generator, getattr(loader.sampler, "generator", None)):
        if isinstance(generator, torch.Generator):
            generator.manual_seed(0)
    return [_order([*islice(iter(indices), BATCHES)]) for _ in range(EPOCHS)]


def _order(batches: list[Any]) -> str:
    found = [str(index) for batch in batches for index in (batch if isinstance(batch, list | tuple) else [batch])]
    return f"{', '.join(found[:_SHOWN])}, … {sha256(' '.join(found).encode()).hexdigest()[:8]}"


def _drawn_again(loader: DataLoader[Any]) -> str:
    index: Any = next(iter(loader.sampler))
    began = time.perf_counter()
    size = sum(map(len, _content(loader.dataset[index])))
    if time.perf_counter() - began > LONGEST_SAMPLE_SECONDS or not 0 < size <= MOST_SAMPLE_BYTES:
        return UNKNOWN
    probe = DataLoader(
        loader.dataset,
        batch_size=None if loader.batch_sampler is None else SAMPLES,
        sampler=[index] * (BATCHES if loader.batch_sampler is None else BATCHES * SAMPLES),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
    batches = [sha256(b"".join(_content(batch))).digest() for _ in range(EPOCHS) for batch in probe]
    return "another one each time" if len({*batches}) == len(batches) else "at times the same one"


def _content(value: Any) -> Iterator[bytes]:
    """Of what is known to have the same bytes where it is the same."""
    if isinstance(value, Tensor):
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, Mapping):
        for name in value:
            yield from _content(value[name])
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _content(each)
    elif isinstance(value, bool | int | float | str | bytes):
        yield repr(value).encode()
