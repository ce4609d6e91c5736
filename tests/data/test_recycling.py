"""Memory is given out again only when nobody holds any part of it."""

import multiprocessing
import pickle
from threading import Event, Thread

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from hasten.data.images import batch_memory as recycling
from hasten.data.images.batch_memory import ALIGNMENT, Recycler

HOLDS = {
    "tensor": lambda tensor: tensor,
    "row": lambda tensor: tensor[0],
    "transposed": lambda tensor: tensor.permute(1, 0),
    "detached": lambda tensor: tensor.detach(),
    "as bytes": lambda tensor: tensor.view(torch.uint8),
    "numpy": lambda tensor: tensor.numpy(),
    "row of numpy": lambda tensor: tensor.numpy()[:1],
    "storage": lambda tensor: tensor.untyped_storage(),
    "memory view": lambda tensor: memoryview(tensor.numpy()),
    "dlpack": lambda tensor: np.from_dlpack(tensor),
}


@pytest.mark.trap(42)
@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_what_is_held_in_any_form_is_not_given_out_again(hold):
    memory = Recycler()
    tensor = memory.empty((2, 3), torch.float32)
    place, held = tensor.data_ptr(), hold(tensor)
    del tensor
    taken = [memory.empty((2, 3), torch.float32) for _ in range(3)]
    assert place not in [each.data_ptr() for each in taken]
    del held
    assert memory.empty((2, 3), torch.float32).data_ptr() == place


def test_a_graph_of_gradients_holds_what_it_will_read():
    memory = Recycler()
    rows = memory.empty((4,), torch.float32)
    place = rows.data_ptr()
    loss = (rows * torch.ones(4, requires_grad=True)).sum()
    del rows
    assert memory.empty((4,), torch.float32).data_ptr() != place
    del loss
    assert memory.empty((4,), torch.float32).data_ptr() == place


def test_what_another_thread_holds_is_not_given_out_again():
    memory, held, let_go = Recycler(), Event(), Event()
    places = []

    def hold():
        tensor = memory.empty((5,), torch.uint8)
        places.append(tensor.data_ptr())
        held.set()
        let_go.wait(30)

    thread = Thread(target=hold)
    thread.start()
    assert held.wait(30)
    mine = memory.empty((5,), torch.uint8)
    assert mine.data_ptr() != places[0]
    let_go.set()
    thread.join()
    assert memory.empty((5,), torch.uint8).data_ptr() == places[0]


def test_many_threads_never_get_the_same_memory(switching_all_the_time):
    memory, wrong = Recycler(), []

    def fill(number):
        for _ in range(300):
            tensor = memory.empty((64,), torch.float32)
            tensor.fill_(number)
            if not (tensor == number).all():
                wrong.append(number)

    threads = [Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_other_thread_looks_while_memory_is_chosen(monkeypatch):
    memory, locked, counted = Recycler(), [], recycling._references

    def watched(pieces):
        locked.append(memory._lock.locked())
        return counted(pieces)

    monkeypatch.setattr(recycling, "_references", watched)
    first = memory.empty((2,), torch.uint8).data_ptr()
    assert memory.empty((2,), torch.uint8).data_ptr() == first
    assert locked == [True, True]
    assert not memory._lock.locked()


def test_another_shape_or_type_is_memory_of_its_own_and_the_old_is_let_go():
    memory = Recycler()
    memory.empty((8,), torch.uint8)
    other = memory.empty((8,), torch.float32)
    assert (other.shape, other.dtype) == ((8,), torch.float32)
    assert len(memory._pieces) == 1
    held = memory.empty((9,), torch.uint8)
    assert len(memory._pieces) == 2
    assert held.shape == (9,)


def test_a_last_small_batch_takes_the_memory_of_a_large_one_and_leaves_it_whole():
    memory = Recycler()
    place = memory.empty((8, 64), torch.float32).data_ptr()
    assert memory.empty((3, 64), torch.float32).data_ptr() == place
    assert memory.empty((8, 64), torch.float32).data_ptr() == place


def test_memory_begins_where_whole_cache_lines_do():
    memory = Recycler()
    held = [memory.empty((size,), torch.uint8) for size in (*range(1, 20), 1_000_003, 5_000_001)]
    assert {tensor.data_ptr() % ALIGNMENT for tensor in held} == {0}


def test_sent_to_another_process_it_begins_empty():
    memory = Recycler()
    memory.empty((8,), torch.uint8)
    sent = pickle.loads(pickle.dumps(memory))  # noqa: S301
    assert len(memory._pieces) == 1
    assert sent._pieces == []
    assert sent.empty((2,), torch.uint8).shape == (2,)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_memory_of_its_own():
    memory = Recycler()
    held = memory.empty((8,), torch.uint8).fill_(7)

    def work():
        mine = memory.empty((8,), torch.uint8).fill_(9)
        assert held.tolist() == [7] * 8
        assert mine.tolist() == [9] * 8

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert held.tolist() == [7] * 8


@settings(max_examples=40, stateful_step_count=30)
class Holding(RuleBasedStateMachine):
    """A loader that takes memory and a user who keeps some of it, in any order."""

    held = Bundle("held")

    def __init__(self):
        super().__init__()
        self.memory, self.kept, self.numbers = Recycler(), {}, iter(range(1, 256))

    @rule(
        target=held,
        shape=st.sampled_from([(4, 6), (2, 6)]),
        dtype=st.sampled_from([torch.float32, torch.uint8]),
        hold=st.sampled_from([HOLDS[name] for name in ("tensor", "row", "transposed", "numpy", "row of numpy")]),
    )
    def take(self, shape, dtype, hold):
        number = next(self.numbers, 255)
        tensor = self.memory.empty(shape, dtype)
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
        tensor.fill_(number)
        name = len(self.kept)
        self.kept[name] = (hold(tensor), number)
        return name

    @rule(name=held)
    def let_go(self, name):
        self.kept[name] = None

    @invariant()
    def nothing_that_is_held_was_written(self):
        for held, number in filter(None, self.kept.values()):
            assert (np.asarray(held) == number).all()


TestHolding = Holding.TestCase
