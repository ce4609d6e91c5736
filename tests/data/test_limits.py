"""What the room of a machine allows, as arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hasten.data.loading.limits import (
    MOST_AHEAD,
    WORKER_BYTES,
    Room,
    batches_held,
    cores_of,
    is_ample,
    most_ahead,
    most_workers,
    room_of,
    shortage,
    worker_counts,
)
from support import laptop

GIB, MIB = 1 << 30, 1 << 20
sizes = st.integers(0, 64 * GIB)
batches = st.integers(1, 2 * GIB)


def test_the_batch_that_is_computed_on_is_held_too():
    assert batches_held(4, 2) == 9


def test_the_cores_come_first_then_fewer_then_more():
    assert worker_counts(8) == [8, 4, 2, 1, 16]
    assert worker_counts(2) == [2, 1, 4]
    assert worker_counts(1) == [1, 2]


def test_sixty_four_mebibytes_of_shared_memory_hold_few_batches():
    room = Room(memory_bytes=64 * GIB, shared_bytes=64 * MIB)
    assert most_workers(room, ahead=2, batch_bytes=10 * MIB) == 2
    assert most_ahead(room, workers=2, batch_bytes=10 * MIB) == 2
    assert shortage(64 * MIB, workers=4, ahead=2, batch_bytes=10 * MIB) == 26 * MIB
    assert shortage(64 * MIB, workers=2, ahead=2, batch_bytes=10 * MIB) == 0


def test_without_shared_memory_the_memory_alone_is_the_limit():
    room = Room(memory_bytes=4 * WORKER_BYTES + 9 * MIB, shared_bytes=None)
    assert most_workers(room, ahead=2, batch_bytes=MIB) == 4
    assert most_ahead(room, workers=4, batch_bytes=MIB) == 2
    assert shortage(None, workers=99, ahead=9, batch_bytes=GIB) == 0


def test_a_batch_without_tensors_takes_no_shared_memory():
    room = Room(memory_bytes=10 * WORKER_BYTES, shared_bytes=0)
    assert most_workers(room, ahead=2, batch_bytes=0) == 10
    assert most_ahead(room, workers=2, batch_bytes=0) == MOST_AHEAD


def test_a_part_of_the_memory_is_left_to_the_job():
    room = room_of(laptop(memory_bytes=16 * GIB, shared_memory_bytes=64 * MIB))
    assert room == Room(memory_bytes=8 * GIB, shared_bytes=64 * MIB)


def test_the_ranks_of_a_run_divide_its_machine():
    machine = laptop(cores=9, memory_bytes=16 * GIB, shared_memory_bytes=64 * MIB, ranks=4)
    assert room_of(machine) == Room(memory_bytes=2 * GIB, shared_bytes=16 * MIB)
    assert room_of(laptop(ranks=4)).shared_bytes is None
    assert cores_of(machine) == 2
    assert cores_of(laptop(cores=2, ranks=4)) == 1


def test_shared_memory_as_large_as_a_system_has_it_needs_no_measuring():
    assert is_ample(8 * GIB, 8, 2)
    assert not is_ample(64 * MIB, 1, 1)
    assert is_ample(None, 100, 8)


@given(sizes, st.one_of(st.none(), sizes), st.integers(1, MOST_AHEAD), batches)
def test_as_many_workers_as_are_allowed_fit_and_one_more_does_not(memory, shared, ahead, size):
    most = most_workers(Room(memory_bytes=memory, shared_bytes=shared), ahead=ahead, batch_bytes=size)

    def fits(workers):
        held = batches_held(workers, ahead) * size
        return held + workers * WORKER_BYTES <= memory and (shared is None or held <= shared)

    assert most == 0 or fits(most)
    assert not fits(most + 1)


@given(sizes, st.one_of(st.none(), sizes), st.integers(1, 64), batches)
def test_as_many_batches_as_are_allowed_fit_and_one_more_does_not(memory, shared, workers, size):
    most = most_ahead(Room(memory_bytes=memory, shared_bytes=shared), workers=workers, batch_bytes=size)

    def fits(ahead):
        held = batches_held(workers, ahead) * size
        return held + workers * WORKER_BYTES <= memory and (shared is None or held <= shared)

    assert most == 0 or fits(most)
    assert most == MOST_AHEAD or not fits(most + 1)


@given(sizes, st.integers(1, 64), st.integers(1, MOST_AHEAD), batches)
def test_nothing_is_missing_exactly_where_the_shared_memory_suffices(free, workers, ahead, size):
    missing = shortage(free, workers=workers, ahead=ahead, batch_bytes=size)
    assert (missing == 0) == (batches_held(workers, ahead) * size <= free)
