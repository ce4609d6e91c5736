"""What the room of a machine allows, as arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hasten.data.loading.loader_options import (
    MOST_AHEAD,
    WORKER_BYTES,
    Room,
    batches_held,
    cores_of,
    most_workers,
    room_of,
    worker_counts,
)
from support import laptop

GIB, MIB = 1 << 30, 1 << 20
sizes = st.integers(0, 64 * GIB)
batches = st.integers(1, 2 * GIB)


def test_the_cores_come_first_then_fewer_then_more():
    assert worker_counts(8) == [8, 4, 2, 1, 16]
    assert worker_counts(2) == [2, 1, 4]
    assert worker_counts(1) == [1, 2]


def test_the_ranks_of_a_run_divide_its_machine():
    machine = laptop(cores=9, memory_bytes=16 * GIB, shared_memory_bytes=64 * MIB, ranks=4)
    assert room_of(machine) == Room(memory_bytes=2 * GIB, shared_bytes=16 * MIB)
    assert room_of(laptop(ranks=4)).shared_bytes is None
    assert cores_of(machine) == 2
    assert cores_of(laptop(cores=2, ranks=4)) == 1


@given(sizes, st.one_of(st.none(), sizes), st.integers(1, MOST_AHEAD), batches)
def test_as_many_workers_as_are_allowed_fit_and_one_more_does_not(memory, shared, ahead, size):
    most = most_workers(Room(memory_bytes=memory, shared_bytes=shared), ahead=ahead, batch_bytes=size)

    def fits(workers):
        held = batches_held(workers, ahead) * size
        return held + workers * WORKER_BYTES <= memory and (shared is None or held <= shared)

    assert most == 0 or fits(most)
    assert not fits(most + 1)
