"""How many loader workers, and how many batches ahead of the step, a machine has room for.

Each worker keeps `ahead` batches ready, and one more is computed on. What is ready lies in /dev/shm, which is memory
too, but has a limit of its own: half of the memory on a plain Linux, 64 MiB in a container that nobody told otherwise.
A worker process holds Python, torch and what the data set makes it load on top.

The ranks of a run divide what their machine has: each starts workers and holds batches of its own.

Everything here is arithmetic on numbers that the caller has read; only the caller knows how current they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.facts.machine import Machine

BATCHES_AHEAD = 2  # of each worker, where nothing else is said: torch's own default
MOST_AHEAD = 8  # a worker that is further ahead only holds memory: a step does not wait for the ninth batch either
WORKER_BYTES = 256 << 20  # a worker process under spawn; a forked one shares most of it
MEMORY_SHARE = 0.5  # the most of a machine's memory that reading ahead may take; the job wants the rest
WORKERS_A_CORE = 2  # more take turns, also where they wait for a disk
AMPLE_BATCH_BYTES = 256 << 20  # where this many are free for every batch held, nobody has to measure one


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What there is for reading ahead."""

    memory_bytes: int
    shared_bytes: int | None  # of /dev/shm; None where batches take no such way


def batches_held(workers: int, ahead: int) -> int:
    """Batches that exist at once: the ones kept ready, and the one that is computed on."""
    return workers * ahead + 1


def room_of(machine: Machine) -> Room:
    """For one rank of those on the machine."""
    shared = machine.shared_memory_bytes
    return Room(
        memory_bytes=int(machine.memory_bytes * MEMORY_SHARE) // machine.ranks,
        shared_bytes=None if shared is None else shared // machine.ranks,
    )


def cores_of(machine: Machine) -> int:
    """For one rank of those on the machine. Where a launcher has bound each rank to cores of its own, these are counted
    for less than they are: a few counts stay untried."""
    return max(machine.cores // machine.ranks, 1)


def is_ample(shared_bytes: int | None, workers: int, ahead: int) -> bool:
    """Whether /dev/shm has room for these workers whatever a batch may hold within reason."""
    return shared_bytes is None or shared_bytes >= batches_held(workers, ahead) * AMPLE_BATCH_BYTES


def worker_counts(cores: int) -> list[int]:
    """Counts of worker processes worth trying: the cores first, then each half of them, then beyond them."""
    return [*(cores >> halvings for halvings in range(cores.bit_length())), cores * WORKERS_A_CORE]


def most_workers(room: Room, *, ahead: int, batch_bytes: int) -> int:
    """How many worker processes fit, each `ahead` batches of batch_bytes ahead."""
    free = room.memory_bytes - batch_bytes
    by_memory = free // (WORKER_BYTES + ahead * batch_bytes) if free > 0 else 0
    if room.shared_bytes is None or batch_bytes == 0:
        return by_memory
    return min(by_memory, max(room.shared_bytes // batch_bytes - 1, 0) // ahead)


def most_ahead(room: Room, *, workers: int, batch_bytes: int) -> int:
    """How many batches each of these workers may keep ready."""
    if batch_bytes == 0:
        return MOST_AHEAD
    by_memory = max((room.memory_bytes - workers * WORKER_BYTES) // batch_bytes - 1, 0) // workers
    if room.shared_bytes is None:
        return min(by_memory, MOST_AHEAD)
    return min(by_memory, max(room.shared_bytes // batch_bytes - 1, 0) // workers, MOST_AHEAD)


def shortage(free: int | None, *, workers: int, ahead: int, batch_bytes: int) -> int:
    """Bytes that are missing for the batches that would exist at once; 0 when they fit, or nothing limits them."""
    return 0 if free is None else max(batches_held(workers, ahead) * batch_bytes - free, 0)
