"""The arms of the shards benchmark: pictures as they lie in their files, shuffled, with their labels, not decoded.

Every arm delivers the same thing: in each epoch every picture once, as batches of 64, a list of bytes and a tensor of
labels. Decoding costs many times as much and is the same for all of them, so it is left out: what remains is reading,
which bench/loading.py then has as a part.

webdataset appears as its documentation begins, and tuned: with the batches made in its own pipeline, by WebLoader, so
that a worker sends a batch and not samples.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from bench.endless import Epoch, endless
from torch.utils.data import DataLoader, Dataset, default_collate

BATCH, BUFFER = 64, 1000
FORM = ("jpg", "cls")


def arm(loader: str, pictures: str, shards: str, workers: int) -> Callable[[int], None]:
    """loader: a name in LOADERS. pictures: the folder of class folders. shards: the folder that it was packed into."""
    return endless(LOADERS[loader](Path(pictures), Path(shards), workers))


class Files(Dataset[Any]):
    """Bytes and label of every file, as a data set is written by hand."""

    def __init__(self, root: Path) -> None:
        classes = sorted(path for path in root.iterdir() if path.is_dir())
        self.items = [(str(file), label) for label, folder in enumerate(classes) for file in sorted(folder.iterdir())]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        path, label = self.items[index]
        with open(path, "rb") as file:
            return file.read(), label


def files(pictures: Path, shards: Path, workers: int) -> Epoch:
    """One file a picture, torch's DataLoader; workers stay, which is the faster way."""
    loader = DataLoader(
        Files(pictures), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: loader


def webdataset_default(pictures: Path, shards: Path, workers: int) -> Epoch:
    samples = _pipeline(shards)
    loader = DataLoader(samples, batch_size=BATCH, num_workers=workers)
    return lambda: loader


def webdataset_tuned(pictures: Path, shards: Path, workers: int) -> Epoch:
    from webdataset.compat import WebLoader

    batches = _pipeline(shards).batched(BATCH, collation_fn=default_collate)
    loader = WebLoader(batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return lambda: loader


def _pipeline(shards: Path) -> Any:
    from webdataset.compat import WebDataset

    urls = [str(path) for path in sorted(shards.glob("*.tar"))]
    data = WebDataset(urls, shardshuffle=len(urls), empty_check=False)
    return data.shuffle(BUFFER).decode().to_tuple(*FORM)  # decode() makes numbers of labels and leaves pictures alone


def hasten(pictures: Path, shards: Path, workers: int) -> Epoch:
    return _hasten(shards, workers, "processes")


def hasten_threads(pictures: Path, shards: Path, workers: int) -> Epoch:
    return _hasten(shards, workers, "threads")


def _hasten(shards: Path, workers: int, kind: Any) -> Epoch:
    from hasten import Shards
    from hasten.data.loading.batch_loader import TrainLoader
    from hasten.data.loading.loader_options import LoaderOptions
    from hasten.data.sources.job_data import source_of

    source = source_of(Shards(shards, form=FORM, buffer=BUFFER), field="train")
    options = LoaderOptions(workers=workers, worker_kind=kind, persistent_workers=workers > 0 and kind == "processes")
    loader = TrainLoader(source, batch_size=BATCH, options=options, seed=0)
    numbers = count()
    return lambda: (microbatch.batch for microbatch in loader.epoch(next(numbers)))


def bytes_and_labels(batch: Any) -> tuple[list[bytes], list[int]]:
    """What a batch of any arm holds."""
    pictures, labels = batch
    assert isinstance(labels, torch.Tensor)
    return list(pictures), labels.tolist()


LOADERS: dict[str, Callable[[Path, Path, int], Epoch]] = {
    function.__name__: function for function in (files, webdataset_default, webdataset_tuned, hasten, hasten_threads)
}
