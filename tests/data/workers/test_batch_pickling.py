"""Whether a value can be sent to another process, how large it is, and which part of it cannot."""

from __future__ import annotations

import errno
import io
import threading
from functools import partial

import pytest
import torch

from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.workers.batch_pickling import unsendable_part
from hasten.data.workers.hang_limit import Patience
from hasten.errors import DataFailed, UserCodeFailed
from support.data.broken_workers import (
    Lambdas,
    OddSamples,
    as_list,
    feed_of,
    nothing_left_behind,
    read,
)

ONE = LoaderOptions(workers=1)
LONG = Patience(seconds=120)


class Holding:
    def __init__(self, held):
        self.held = held


def no_name(x):
    return x


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (lambda x: x, "train"),
        (Holding(lambda x: x), "train.held"),
        (Holding([1, {"key": [Holding(threading.Lock())]}]), "train.held[1]['key'][0].held"),
        (Holding((no_name, (x for x in ()))), "train.held[1]"),
        (partial(no_name, threading.Lock()), "train.args[0]"),
        (Holding(partial(print, file=io.TextIOWrapper(io.BytesIO()))), "train.held.keywords['file']"),
        (Holding(threading.Lock()).__init__, "train.__self__.held"),
        (Holding(torch.ones(3, requires_grad=True) * 2), "train.held"),
    ],
)
def test_the_way_to_the_smallest_part_that_cannot_be_sent_is_named(value, path):
    found = unsendable_part(value, "train")
    assert found is not None
    assert found.path == path
    assert found.reason


def test_a_batch_that_cannot_leave_its_worker_is_told_at_once_with_its_part():
    """torch prints it in the worker, and the training process waits for ever."""
    with nothing_left_behind():
        feed = feed_of(Lambdas(), ONE, patience=LONG, collate=as_list)
        with pytest.raises(UserCodeFailed) as caught:
            read(feed, 8)
    assert "batch[0]['function'] is <function" in caught.value.what
    assert caught.value.where == "Job.train"


class Returning:
    """Leaves its worker, and raises where it arrives."""

    def __init__(self, error):
        self.error = error

    def __setstate__(self, state):
        raise state["error"]


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (
            ValueError("of another version"),
            UserCodeFailed,
            "from its loader worker: ValueError: of another",
        ),
        (OSError(errno.EMFILE, "Too many open files"), DataFailed, "ulimit -n"),
        (RuntimeError("received 0 items of ancdata"), DataFailed, "ulimit -n"),
    ],
)
def test_a_batch_that_cannot_arrive_is_reported_where_it_is_asked_for(error, kind, told):
    with nothing_left_behind():
        feed = feed_of(OddSamples(Returning(error)), ONE, patience=LONG, collate=as_list)
        with pytest.raises(kind, match=told) as caught:
            read(feed, 8)
    assert type(caught.value.__cause__) is type(error)


def test_conjugate_and_negated_views_arrive_with_their_values():
    """torch itself sends the memory that they are views of, and not that they are."""
    with nothing_left_behind():
        ((conjugate, negated),) = read(feed_of(range(4), ONE, patience=LONG, collate=as_views), 4)
    assert conjugate.tolist() == [0 - 1j, 1 - 1j, 2 - 1j, 3 - 1j]
    assert negated.tolist() == [-1, -1, -1, -1]


def as_views(samples):
    conjugate = torch.tensor([complex(sample, 1) for sample in samples]).conj()
    return conjugate, conjugate.imag
