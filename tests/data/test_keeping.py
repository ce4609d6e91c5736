"""Kept on disk or in memory, the same samples come with the same random numbers in the same batches."""

from __future__ import annotations

import multiprocessing
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset, default_collate

from hasten.data.cache.cache_file import Cached
from hasten.data.cache.cached_source import Watcher, kept, why_not_cached, why_not_in_memory
from hasten.data.loading.batch_loader import EvaluationLoader, TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.augmented import Augmented
from hasten.data.sources.job_data import Source, source_of
from hasten.errors import DataFailed, OutOfMemory
from support import laptop
from support.data.cached_samples import FORMS, Grey, jittered, same

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

CPU = torch.device("cpu")
SPAWNED = pytest.param(2, "spawn", marks=pytest.mark.proof)
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


class Sample(list[Any]):
    """A kind of list, as some libraries have one of their own."""


def as_read(samples: list[Any]) -> list[Any]:
    return samples


def kept_as(source: Source, options: LoaderOptions, watcher: Watcher = NOBODY) -> Source:
    return kept(source, options, CPU, laptop(), watcher)


def batches(source: Source, options: LoaderOptions, rank: int = 0, world_size: int = 1) -> list[Any]:
    loader = TrainLoader(
        *(source,), batch_size=4, microbatch_size=3, options=options, seed=7, rank=rank, world_size=world_size
    )
    found = [one for epoch in range(2) for one in loader.epoch(epoch)]
    loader.close()
    return [(one.batch, one.samples, one.last) for one in found]


@contextmanager
def starting_processes_by(method: str) -> Iterator[None]:
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(method, force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


# The cache changes nothing


@pytest.mark.trap(41)
@pytest.mark.trap(40)
@pytest.mark.parametrize(("workers", "start"), [(0, "fork"), (1, "fork"), (2, "fork"), SPAWNED])
@pytest.mark.parametrize("data", [Augmented(Grey(), jittered), Subset(Augmented(Grey(), jittered), [8, 3, 1, 0, 5])])
def test_with_a_cache_batches_are_the_same_random_transforms_included(tmp_path, workers, start, data):
    source = source_of(data, field="train")
    wanted = batches(source, LoaderOptions())
    options = LoaderOptions(workers=workers, cache=tmp_path)
    from_cache = kept_as(source, options)
    with starting_processes_by(start):
        assert same(batches(from_cache, options), wanted)
    epochs = len(wanted) // 2
    assert not same(wanted[:epochs], wanted[epochs:]), "nothing is random here, so nothing could be frozen"


@pytest.mark.trap(41)
def test_with_a_cache_no_sample_is_read_from_the_data_set(tmp_path):
    class Once(Grey):
        done = False

        def cache_key(self) -> str:
            return "once"

        def __getitem__(self, index: int) -> Any:
            assert not self.done, "read again"
            return super().__getitem__(index)

    inner = Once()
    source = kept_as(source_of(Augmented(inner, jittered), field="train"), LoaderOptions(cache=tmp_path))
    inner.done = True
    assert len(batches(source, LoaderOptions())) == 10


@pytest.mark.trap(40)
@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_reads_the_same_with_and_without_a_cache(tmp_path, world_size):
    source = source_of(Augmented(Grey(), jittered), field="train")
    options = LoaderOptions(cache=tmp_path)
    for rank in range(world_size):
        assert same(
            batches(kept_as(source, options), options, rank, world_size),
            batches(source, LoaderOptions(), rank, world_size),
        )


@given(form=FORMS, count=st.integers(1, 9))
@settings(max_examples=60)
def test_samples_of_any_form_are_the_same_from_a_cache(tmp_path_factory, form, count):
    source = source_of(Forms(form, count), field="train", collate=as_read)
    options = LoaderOptions(cache=tmp_path_factory.mktemp("cache"))
    assert same(batches(kept_as(source, options), options), batches(source, LoaderOptions()))


def test_an_evaluation_is_the_same_from_a_cache(tmp_path):
    source = source_of(Augmented(Grey(), jittered), field="valid")
    options = LoaderOptions(cache=tmp_path)

    def read(one: Source) -> list[Any]:
        return [found.batch for found in EvaluationLoader(one, batch_size=4, options=LoaderOptions(), seed=7)]

    assert same(read(kept_as(source, options)), read(source))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_is_steady_as_a_whole_is_gathered_from_the_file(tmp_path, workers):
    source = source_of(Steady(), field="train")
    options = LoaderOptions(cache=tmp_path, workers=workers)
    from_cache = kept_as(source, options)
    assert from_cache.gathers == (workers == 0)
    assert type(from_cache.dataset) is Cached
    assert same(batches(from_cache, options), batches(source, LoaderOptions()))


@pytest.mark.trap(41)
def test_a_batch_gathered_from_the_file_can_be_changed_in_place(tmp_path):
    source = kept_as(source_of(Steady(), field="train"), LoaderOptions(cache=tmp_path))
    before = batches(source, LoaderOptions())
    for batch, _, _ in batches(source, LoaderOptions()):
        batch[0].zero_()
    assert same(batches(source, LoaderOptions()), before)


@pytest.mark.trap(41)
def test_a_transform_that_changes_its_argument_does_not_reach_the_next_epoch(tmp_path):
    source = kept_as(source_of(Augmented(Grey(), jittered), field="train"), LoaderOptions(cache=tmp_path))
    first = batches(source, LoaderOptions())
    assert same(batches(source, LoaderOptions()), first)


# Where a cache is of no use


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Grey(), "write hasten.Augmented(dataset, transform)"),
        (ConcatDataset([Grey(), Grey()]), "write hasten.Augmented(dataset, transform)"),
        (Subset(ConcatDataset([Augmented(Grey(), jittered), Grey()]), [3]), "one transform around all its parts"),
        (torch.arange(5), "columns in memory already"),
        (TensorDataset(torch.arange(5)), "columns in memory already"),
        ([1, 2, 3], "in memory already"),
        (Stream(), "stream"),
    ],
    ids=["unsaid", "several", "several Augmented", "tensor", "TensorDataset", "list", "stream"],
)
def test_where_there_is_nothing_to_cache_the_reason_is_a_notice_and_the_data_stay(tmp_path, data, why):
    source = source_of(data, field="train")
    found = kept_as(source, LoaderOptions(cache=tmp_path))
    assert found.dataset is source.dataset
    assert why in found.notices[-1]
    assert why in (why_not_cached(source) or "")


def test_columns_that_a_collate_function_wants_as_samples_are_not_cached_either(tmp_path):
    for data in (torch.arange(5), (torch.arange(5),), {"x": torch.arange(5)}):
        source = source_of(data, field="train", collate=as_read)
        assert "in memory already" in kept_as(source, LoaderOptions(cache=tmp_path)).notices[-1]


def test_who_watches_is_told(tmp_path):
    said, progress = list[str](), list[tuple[int, int]]()
    watcher = Watcher(said.append, lambda done, count: progress.append((done, count)))
    kept_as(source_of(Augmented(Grey(), jittered), field="train"), LoaderOptions(cache=tmp_path), watcher)
    assert "building a cache of 9 samples" in said[0]
    assert progress[-1] == (9, 9)


# In memory


@pytest.mark.parametrize(
    "form",
    [
        lambda index: (torch.full((2, 3), index), index),
        lambda index: {"a": np.full(3, index, np.float32), "b": float(index), "c": index % 2 == 0},
        lambda index: torch.full((3,), index, dtype=torch.bfloat16),
        lambda index: [np.float32(index), np.int8(index)],
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


@given(form=FORMS, count=st.integers(1, 6))
@settings(max_examples=60)
def test_samples_of_any_form_are_held_right_or_refused(form, count):
    source = source_of(Forms(form, count), field="train")
    try:
        held = kept_as(source, LoaderOptions(in_memory="host"))
    except DataFailed:
        return
    assert same(batches(held, LoaderOptions()), batches(source, LoaderOptions()))


@pytest.mark.parametrize(
    "form",
    [
        lambda index: Sample([torch.full((3,), index), index]),
        lambda index: OrderedDict(values=torch.full((3,), index), label=index),
    ],
    ids=["list", "dictionary"],
)
def test_samples_of_a_kind_of_their_own_are_refused_because_batches_would_be_of_another(form):
    why = (
        "sample 0 is not made of numbers, arrays and tensors alone, or they are nested, or lie in a list or dictionary "
        "of a class of its own"
    )
    with pytest.raises(DataFailed, match=why) as caught:
        kept_as(source_of(Forms(form, 9), field="train"), LoaderOptions(in_memory="host"))
    assert "leave in_memory out" in caught.value.fix


def test_a_subset_in_memory_holds_its_own_samples_only():
    source = source_of(Subset(Steady(), [7, 2, 5]), field="train")
    held = kept_as(source, LoaderOptions(in_memory="host"))
    assert held.columns is not None
    assert same(held.columns[1], torch.tensor([7, 2, 5]))
    assert same(batches(held, LoaderOptions()), batches(source, LoaderOptions()))


def test_from_a_cache_into_memory_batches_stay_the_same(tmp_path):
    source = source_of(Steady(), field="train")
    options = LoaderOptions(in_memory="host", cache=tmp_path, workers=2)
    held = kept_as(source, options)
    assert held.gathers
    assert same(batches(held, options), batches(source, LoaderOptions()))


@pytest.mark.trap(41)
@pytest.mark.parametrize(
    ("data", "collate", "why"),
    [
        (Augmented(Grey(), jittered), None, "other ones each time"),
        (Grey(), None, "other ones each time"),
        (Steady(), as_read, "collate function"),
        (Stream(), None, "stream"),
    ],
    ids=["Augmented", "unsaid", "collate", "stream"],
)
def test_what_cannot_be_held_in_memory_stays_as_it_is_with_the_reason(data, collate, why):
    source = source_of(data, field="train", collate=collate)
    held = kept_as(source, LoaderOptions(in_memory="host"))
    assert not held.gathers
    assert why in held.notices[-1]
    assert why in (why_not_in_memory(source) or "")


def test_on_a_processor_there_is_no_device_to_hold_samples():
    held = kept_as(source_of((torch.ones(5, 2),), field="train"), LoaderOptions(in_memory="device"))
    assert "this job computes on the processor" in held.notices[-1]


@pytest.mark.trap(41)
def test_a_data_set_that_says_it_draws_nothing_and_draws_is_found_out():
    class Lying(Steady):
        steady_reason = "it says so"

        def __getitem__(self, index: int) -> Any:
            return torch.rand(2)

    with pytest.raises(DataFailed, match="sample 0 draws from torch's global generator") as caught:
        kept_as(source_of(Lying(), field="train"), LoaderOptions(in_memory="host"))
    assert "hasten.Augmented(dataset, transform)" in caught.value.fix
    assert caught.value.fix.endswith("; or leave in_memory out of the plan")


def test_samples_that_are_not_alike_are_refused_by_number():
    source = source_of(Forms(lambda index: torch.ones(2 + (index == 5)), 9), field="train")
    with pytest.raises(DataFailed, match="sample 5 has other shapes or types than sample 0"):
        kept_as(source, LoaderOptions(in_memory="host"))


@pytest.mark.parametrize(
    "form",
    [lambda index: "text", lambda index: (index, [index]), lambda index: torch.ones(1 + index)],
    ids=["text", "nested", "unlike"],
)
def test_samples_that_cannot_be_columns_can_be_read_without(form):
    with pytest.raises(DataFailed) as caught:
        kept_as(source_of(Forms(form, 9), field="train"), LoaderOptions(in_memory="host"))
    assert caught.value.fix == "leave in_memory out of the plan"


def test_what_does_not_fit_is_refused_with_the_arithmetic_before_any_of_it_is_read():
    source = source_of(Forms(lambda index: torch.zeros(1000, dtype=torch.uint8), 10**12), field="train")
    with pytest.raises(OutOfMemory, match=r"all samples take 909 TiB, and .* the host's free memory .* is 0\.5 × "):
        kept_as(source, LoaderOptions(in_memory="host"))


def test_the_ranks_on_a_machine_divide_its_free_memory():
    source, options = source_of(Steady(), field="train"), LoaderOptions(in_memory="host")
    assert kept(source, options, CPU, laptop(ranks=2), NOBODY).gathers
    with pytest.raises(OutOfMemory, match="the host's free memory for each of 1000000000 ranks"):
        kept(source, options, CPU, laptop(ranks=10**9), NOBODY)


def test_the_share_of_memory_can_be_chosen():
    source = source_of(Steady(), field="train")
    with pytest.raises(OutOfMemory, match=r"1e-12 × "):
        kept_as(source, LoaderOptions(in_memory="host", in_memory_share=1e-12))


@pytest.mark.gpu
def test_on_the_device_batches_are_the_same_and_already_there():
    device, machine = torch.device("cuda"), laptop(accelerators=1, accelerator="card", accelerator_memory_bytes=1 << 30)
    for data in ((torch.arange(18.0).reshape(9, 2), torch.arange(9)), Steady()):
        source = source_of(data, field="train")
        options = LoaderOptions(in_memory="device")
        held = kept(source, options, device, machine, NOBODY)
        assert held.on_accelerator
        found = [tuple(part.cpu() for part in batch) for batch, _, _ in batches(held, options)]
        assert same(found, [tuple(batch) for batch, _, _ in batches(source, LoaderOptions())])


@pytest.mark.gpu
def test_what_does_not_fit_on_the_device_is_refused_with_the_arithmetic():
    machine = laptop(accelerators=1, accelerator="card", accelerator_memory_bytes=1000)
    source = source_of((torch.zeros(1000),), field="train")
    with pytest.raises(OutOfMemory, match=r"the device's memory .* 0\.25 × "):
        kept(source, LoaderOptions(in_memory="device"), torch.device("cuda"), machine, NOBODY)


def test_a_cache_folder_given_as_true_is_the_usual_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept_as(source_of(Augmented(Grey(), jittered), field="train"), LoaderOptions(cache=True))
    assert [*Path(tmp_path / "hasten").glob("*/manifest.json")]
