"""A batch that is only looked at is read by a process that ends with it, and is the batch that training begins with."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from torch.utils.data import IterableDataset

from support.data.first_batches import Remembering, copies, looked_at, readers
from support.data.loaders import HERE, ONE_WORKER, Drawing, DrawingStream, columns, flat, loader_of


class RememberingStream(Remembering, IterableDataset):
    def __iter__(self):
        return (self[index] for index in range(8))


class Locked(Remembering):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@copies
@pytest.mark.parametrize("data", [Remembering(), RememberingStream(), Locked()], ids=["rows", "stream", "lock"])
def test_nothing_is_read_in_the_training_process(data):
    assert os.getpid() not in readers(data, options=ONE_WORKER)
    assert data.reads == 0
    assert readers(data) == {os.getpid()}, "a job without workers starts none to look at its data"


@pytest.mark.parametrize("data", [Drawing(8), DrawingStream(8), columns(8)], ids=["rows", "stream", "columns"])
@pytest.mark.parametrize("options", [HERE, ONE_WORKER])
def test_it_is_the_batch_that_training_begins_with_and_no_random_number_is_lost(data, options):
    loader = loader_of(data)
    wanted = flat(next(loader.epoch(0)).batch)
    before = torch.get_rng_state()
    assert flat(looked_at(data, options=options)) == wanted
    assert torch.equal(torch.get_rng_state(), before)


def test_where_workers_start_anew_one_reads_it_if_the_run_will_have_workers(other_start):
    assert readers(Remembering()) == {os.getpid()}
    assert os.getpid() not in readers(Remembering(), options=ONE_WORKER)
    assert readers(Locked(), options=ONE_WORKER) == {os.getpid()}
