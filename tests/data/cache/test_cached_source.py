"""Kept on disk or in memory, the same samples come with the same random numbers in the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset, default_collate

from hasten.data.cache.cached_source import Watcher, stored, why_not_cached, why_not_in_memory
from hasten.data.loading.batch_loader import TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.augmented import Augmented
from hasten.data.sources.job_data import Source, source_of
from hasten.errors import DataFailed, OutOfMemory
from support import laptop
from support.data.cached_samples import Grey, jittered, same

CPU = torch.device("cpu")
NOBODY = Watcher(lambda text: None, lambda done, count: None)


class Steady(Grey):
    """Says of itself that it draws nothing."""

    steady_reason = "its pixels are its number"


class Forms:
    steady_reason = "a form follows from its seed"

    def __init__(self, form: Any, count: int) -> None:
        self.form, self.count = form, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.form(index)

    def cache_key(self) -> str:
        return "the only one in its folder"


class Row(NamedTuple):
    values: torch.Tensor
    label: int


def as_read(samples: list[Any]) -> list[Any]:
    return samples


def kept_as(source: Source, options: LoaderOptions, watcher: Watcher = NOBODY) -> Source:
    return stored(source, options, CPU, laptop(), watcher)


def batches(source: Source, options: LoaderOptions, rank: int = 0, world_size: int = 1) -> list[Any]:
    loader = TrainLoader(
        *(source,), batch_size=4, microbatch_size=3, options=options, seed=7, rank=rank, world_size=world_size
    )
    found = [one for epoch in range(2) for one in loader.epoch(epoch)]
    loader.close()
    return [(one.batch, one.samples, one.last) for one in found]


@pytest.mark.trap(41)
@pytest.mark.trap(40)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [Augmented(Grey(), jittered), Subset(Augmented(Grey(), jittered), [8, 3, 1, 0, 5])])
def test_with_a_cache_batches_are_the_same_random_transforms_included(tmp_path, workers, data):
    source = source_of(data, field="train")
    wanted = batches(source, LoaderOptions())
    options = LoaderOptions(workers=workers, cache=tmp_path)
    from_cache = kept_as(source, options)
    assert same(batches(from_cache, options), wanted)
    epochs = len(wanted) // 2
    assert not same(wanted[:epochs], wanted[epochs:]), "nothing is random here, so nothing could be frozen"


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Grey(), "write hasten.Augmented(dataset, transform)"),
        (ConcatDataset([Grey(), Grey()]), "write hasten.Augmented(dataset, transform)"),
        (Subset(ConcatDataset([Augmented(Grey(), jittered), Grey()]), [3]), "one transform around all parts"),
        (TensorDataset(torch.arange(5)), "columns in memory already"),
        ([1, 2, 3], "in memory already"),
        (Stream(), "stream"),
    ],
    ids=["unsaid", "several", "several Augmented", "TensorDataset", "list", "stream"],
)
def test_where_there_is_nothing_to_cache_the_reason_is_a_notice_and_the_data_stay(tmp_path, data, why):
    source = source_of(data, field="train")
    found = kept_as(source, LoaderOptions(cache=tmp_path))
    assert found.dataset is source.dataset
    assert why in found.notices[-1]
    assert why in (why_not_cached(source) or "")


@pytest.mark.parametrize(
    "form",
    [
        lambda index: (torch.full((2, 3), index), index),
        lambda index: {"a": np.full(3, index, np.float32), "b": float(index), "c": index % 2 == 0},
        lambda index: torch.full((3,), index, dtype=torch.bfloat16),
        lambda index: index,
        lambda index: (torch.arange(6).reshape(2, 3).t() + index,),
        lambda index: Row(torch.full((3,), index), index),
        lambda index: (np.uint16(65535 - index), np.uint32(index), np.full(1, index, np.uint64)),
    ],
)
@pytest.mark.trap(40)
def test_held_in_memory_batches_are_those_of_collation(form):
    source = source_of(Forms(form, 9), field="train")
    options = LoaderOptions(in_memory="host")
    held = kept_as(source, options)
    assert held.gathers
    assert same(batches(held, options), batches(source, LoaderOptions()))
    assert same(held.columns, default_collate([form(index) for index in range(9)]))


@pytest.mark.trap(41)
@pytest.mark.parametrize(
    ("data", "collate", "why"),
    [
        (Grey(), None, "different each time"),
        (Steady(), as_read, "collate function"),
        (Stream(), None, "stream"),
    ],
    ids=["unsaid", "collate", "stream"],
)
def test_what_cannot_be_held_in_memory_stays_as_it_is_with_the_reason(data, collate, why):
    source = source_of(data, field="train", collate=collate)
    held = kept_as(source, LoaderOptions(in_memory="host"))
    assert not held.gathers
    assert why in held.notices[-1]
    assert why in (why_not_in_memory(source) or "")


@pytest.mark.trap(41)
def test_a_data_set_that_says_it_draws_nothing_and_draws_is_found_out():
    class Lying(Steady):
        steady_reason = "it says so"

        def __getitem__(self, index: int) -> Any:
            return torch.rand(2)

    with pytest.raises(DataFailed, match="sample 0 draws from torch's global generator") as caught:
        kept_as(source_of(Lying(), field="train"), LoaderOptions(in_memory="host"))
    assert "hasten.Augmented(dataset, transform)" in caught.value.fix


def test_what_does_not_fit_is_refused_with_the_arithmetic_before_any_of_it_is_read():
    source = source_of(Forms(lambda index: torch.zeros(1000, dtype=torch.uint8), 10**12), field="train")
    with pytest.raises(OutOfMemory, match=r"all samples take 909 TiB, and .* the host's free memory .* is 0\.5 × "):
        kept_as(source, LoaderOptions(in_memory="host"))


@pytest.mark.gpu
def test_on_the_device_batches_are_the_same_and_already_there():
    device, machine = torch.device("cuda"), laptop(accelerators=1, accelerator="card", accelerator_memory_bytes=1 << 30)
    for data in ((torch.arange(18.0).reshape(9, 2), torch.arange(9)), Steady()):
        source = source_of(data, field="train")
        options = LoaderOptions(in_memory="device")
        held = stored(source, options, device, machine, NOBODY)
        assert held.on_accelerator
        found = [tuple(part.cpu() for part in batch) for batch, _, _ in batches(held, options)]
        assert same(found, [tuple(batch) for batch, _, _ in batches(source, LoaderOptions())])


class Damaged(Steady):
    steady_reason = "its pixels are its number"

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise OSError("cut off")
        return super().__getitem__(index)


@pytest.mark.trap(40)
@pytest.mark.parametrize("option", ["cache", "in_memory"])
def test_a_sample_that_cannot_be_read_keeps_its_data_from_being_stored_with_the_reason(tmp_path, option):
    data = Damaged()
    source = source_of(Subset(data, range(9)), field="train")
    value = {"cache": tmp_path, "in_memory": "host"}[option]
    stays = kept_as(source, LoaderOptions(**{option: value}))
    assert (stays.dataset, stays.columns) == (source.dataset, None)
    assert "sample 5" in stays.notices[-1]
    assert "OSError: cut off" in stays.notices[-1]
