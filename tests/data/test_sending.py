"""Whether a value can be sent to another process, how large it is, and which part of it cannot."""

from __future__ import annotations

import errno
import io
import threading
from functools import partial

import pytest
import torch

from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.workers import batch_pickling as sending
from hasten.data.workers.batch_pickling import Parcel, parcel, unsendable_part
from hasten.data.workers.hang_limit import Patience
from hasten.errors import DataFailed, OutOfMemory, UserCodeFailed
from support.data.broken_workers import (
    Lambdas,
    OddSamples,
    as_list,
    feed_of,
    nothing_left_behind,
    read,
)

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

ONE = LoaderOptions(workers=1)
LONG = Patience(seconds=120)


class Holding:
    def __init__(self, held):
        self.held = held


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


def test_tensors_are_weighed_in_shared_memory_and_the_rest_in_the_pipe():
    rows, label = torch.zeros(25, 4), torch.zeros(3, dtype=torch.int64)
    found = parcel({"rows": rows, "more": [label, b"x" * 1000]})
    assert found.shared_bytes == 400 + 24
    assert 1000 < found.piped_bytes < 1200


def test_a_part_of_a_tensor_takes_the_memory_of_the_whole():
    assert parcel(torch.zeros(1000, dtype=torch.uint8)[:10]) == parcel(torch.zeros(1000, dtype=torch.uint8))


def test_weighing_moves_nothing():
    rows = torch.zeros(10)
    assert isinstance(parcel(rows), Parcel)
    assert not rows.is_shared()


def no_name(x):
    return x


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (lambda x: x, "train"),
        (Holding(lambda x: x), "train.held"),
        (Slotted(threading.Lock()), "train.held"),
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


def test_what_can_be_sent_has_no_such_part():
    assert unsendable_part(Holding([1, "a", torch.zeros(3), no_name, Slotted(None)]), "train") is None


def test_a_value_that_holds_itself_is_walked_once():
    value = Holding(threading.Lock())
    value.again = [value]
    found = unsendable_part(value, "train")
    assert found is not None
    assert found.path == "train.held"


def test_a_batch_that_cannot_leave_its_worker_is_told_at_once_with_its_part():
    """torch prints it in the worker, and the training process waits for ever."""
    with nothing_left_behind():
        feed = feed_of(Lambdas(), ONE, patience=LONG, collate=as_list)
        with pytest.raises(UserCodeFailed) as caught:
            read(feed, 8)
    assert "batch[0]['function'] is <function" in caught.value.what
    assert caught.value.where == "Job.train"


def test_a_batch_with_a_gradients_history_is_told_too():
    with nothing_left_behind():
        feed = feed_of(OddSamples(torch.ones(2, requires_grad=True) * 2), ONE, patience=LONG, collate=as_list)
        with pytest.raises(UserCodeFailed, match="history: detach"):
            read(feed, 8)


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


class Moves:
    """Moves itself to a device, so nobody looks inside."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, device):
        return Moves(self.tensor.to(device))


@pytest.mark.parametrize("view", [torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag])
def test_a_marked_view_inside_of_what_is_only_handed_on_is_refused_by_its_place(view):
    with pytest.raises(TypeError, match="the mark is lost"):
        parcel(Moves(view))
    found = unsendable_part({"moves": Moves(view)}, "batch")
    assert found is not None
    assert found.path == "batch['moves'].tensor"


def test_full_shared_memory_in_a_worker_is_full_memory_with_its_name():
    failed = sending.Failed(
        kind=UserCodeFailed, what="RuntimeError: unable to allocate shared memory(shm) for file", where="here", fix=""
    )
    error = sending._told(failed).error()
    assert isinstance(error, OutOfMemory)
    assert "shm" in error.what
    assert "--shm-size" in error.fix
