"""A batch that is only looked at is read by a process that ends with it, and is the batch that training begins with."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from broken_workers import Harmful, Lambdas, as_list, feed_of, nothing_left_behind
from hasten.data import feed
from hasten.data.feed import Feed
from hasten.data.options import LoaderOptions
from hasten.data.reading import Request, reader_of
from hasten.data.sources import source_of
from hasten.data.watch import Patience
from hasten.errors import DataFailed, UserCodeFailed
from hasten.facts.machine import usable_cores
from loading import HERE, ONE_WORKER, Drawing, DrawingStream, columns, flat, loader_of

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
copies = pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="workers do not start as copies here")

FIRST = Request(0, np.arange(4))


class Remembering:
    """Each sample is the process that reads it; the object remembers how many it was asked for."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.reads += 1
        return os.getpid()


class RememberingStream(Remembering, IterableDataset):
    def __iter__(self):
        return (self[index] for index in range(8))


class Locked(Remembering):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def looked_at(data, **arguments):
    with nothing_left_behind():
        loader = loader_of(data, **arguments)
        batch = loader.first_batch()
        loader.close()
    return batch


def readers(data, **arguments):
    """The processes that have read the first batch."""
    return {*looked_at(data, **arguments).tolist()}


@copies
@pytest.mark.parametrize("data", [Remembering(), RememberingStream(), Locked()], ids=["rows", "stream", "lock"])
def test_nothing_is_read_in_the_training_process(data):
    assert os.getpid() not in readers(data)
    assert data.reads == 0


@pytest.mark.parametrize("data", [Drawing(8), DrawingStream(8), columns(8)], ids=["rows", "stream", "columns"])
@pytest.mark.parametrize("options", [HERE, ONE_WORKER])
def test_it_is_the_batch_that_training_begins_with_and_no_random_number_is_lost(data, options):
    loader = loader_of(data)
    wanted = flat(next(loader.epoch(0)).batch)
    before = torch.get_rng_state()
    assert flat(looked_at(data, options=options)) == wanted
    assert torch.equal(torch.get_rng_state(), before)


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


@dataclass(frozen=True, slots=True)
class Framed:
    mask: torch.Tensor


class Self(dict):
    """Moves itself, as a tokenizer's encoding does."""

    def to(self, device):
        return self


def every_form(samples):
    half = torch.tensor([1.5, -2], dtype=torch.bfloat16)
    return {
        "pair": Pair(half, torch.tensor(3)),
        "framed": Framed(torch.tensor([[True, False]])),
        "empty": torch.empty(0, 3),
        "complex": torch.tensor([1 + 2j]),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "spread": torch.arange(3.0).expand(2, 3),
        "self": Self(ids=torch.arange(3)),
        "own": torch.nn.Parameter(torch.tensor([0.5])),  # of a class of its own
        "words": ["a", b"b", None],
    }


def test_every_form_of_a_batch_arrives_as_it_was():
    found, wanted = looked_at([0] * 8, collate=every_form), every_form([])
    assert found.keys() == wanted.keys()
    assert type(found["pair"]) is Pair
    for one, other in [
        (found["pair"].one, wanted["pair"].one),
        (found["pair"].other, wanted["pair"].other),
        (found["framed"].mask, wanted["framed"].mask),
        *((found[name], wanted[name]) for name in ("empty", "complex", "turned", "spread")),
        (found["self"]["ids"], wanted["self"]["ids"]),
        (found["own"], wanted["own"]),
    ]:
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert found["turned"].stride() == (1, 3)
    assert type(found["self"]) is Self
    assert type(found["own"]) is torch.nn.Parameter
    assert found["words"] == wanted["words"]


@copies
def test_it_needs_no_shared_memory(monkeypatch):
    monkeypatch.setattr(feed, "free_shared_memory", lambda: 0)
    assert os.getpid() not in readers(Remembering())


@copies
def test_what_only_fits_into_shared_memory_and_not_into_this_one_is_read_here(monkeypatch):
    monkeypatch.setattr(feed, "free_shared_memory", lambda: 7)
    batch = looked_at(Remembering(), collate=lambda samples: Self(readers=torch.tensor(samples)))
    assert {*batch["readers"].tolist()} == {os.getpid()}


def test_a_batch_that_cannot_be_sent_is_read_here():
    batch = looked_at(Lambdas(), collate=as_list, options=ONE_WORKER)
    assert [sample["function"]() for sample in batch] == [sample["number"] for sample in batch]


class NotInWorkers(Remembering):
    """As data on an accelerator: a copied process cannot use that."""

    def __getitem__(self, index):
        if get_worker_info() is not None:
            raise RuntimeError("cannot re-initialise the device")
        return super().__getitem__(index)


def test_what_workers_cannot_read_is_read_here():
    assert readers(NotInWorkers(), options=ONE_WORKER) == {os.getpid()}


def test_where_a_worker_hangs_it_is_read_here():
    with nothing_left_behind():
        hanging = feed_of(Harmful("circle", bad=0), ONE_WORKER, patience=Patience(seconds=0.4, first_seconds=0.4))
        (batch,) = hanging.answers_apart([FIRST])
    assert batch.tolist() == [0, 1, 2, 3]


def test_a_worker_that_dies_is_told():
    with nothing_left_behind(), pytest.raises(DataFailed, match="SIGKILL"):
        next(feed_of(Harmful("kill", bad=0), ONE_WORKER, patience=Patience(seconds=120)).answers_apart([FIRST]))


def test_where_the_job_has_no_workers_what_ends_one_is_read_here():
    deadly = DeadlyElsewhere()
    with nothing_left_behind():
        assert loader_of(deadly).first_batch().tolist() == [os.getpid()] * 4
    assert deadly.reads == 4


def test_a_process_that_may_have_no_children_reads_it_itself():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert len({*pool.apply(readers, (Remembering(),))}) == 1


class DeadlyElsewhere(Remembering):
    """As a library that does not survive in a copy of its process."""

    def __init__(self):
        super().__init__()
        self.home = os.getpid()

    def __getitem__(self, index):
        if os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Broken(Remembering):
    def __getitem__(self, index):
        raise ValueError("no such row")


def test_a_sample_that_cannot_be_read_is_told_by_its_own_error():
    with nothing_left_behind(), pytest.raises(UserCodeFailed, match="ValueError: no such row") as caught:
        loader_of(Broken()).first_batch()
    assert isinstance(caught.value.__cause__, ValueError)


def test_where_workers_start_anew_one_reads_it_if_the_run_will_have_workers(other_start):
    assert readers(Remembering()) == {os.getpid()}
    assert os.getpid() not in readers(Remembering(), options=ONE_WORKER)
    assert readers(Locked(), options=ONE_WORKER) == {os.getpid()}


@pytest.mark.filterwarnings("error")
def test_more_workers_than_cores_are_started_without_a_word_of_torchs():
    cores = usable_cores()
    source = source_of(Drawing(8), field="train")
    with nothing_left_behind():
        many = Feed(reader_of(source, 7), source, LoaderOptions(workers=cores + 1))
        assert len([*many.answers([FIRST])]) == 1
        many.close()
