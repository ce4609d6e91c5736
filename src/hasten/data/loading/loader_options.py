"""How samples are loaded: the settings that a plan may change, and how much reading ahead a machine has room for.

None of the settings changes what is learned. Each worker keeps `ahead` batches ready, and one more is computed on.
Ready batches lie in /dev/shm, which is memory with a limit of its own: half of the memory on a plain Linux, 64 MiB in a
container by default. The ranks of a run divide what their machine has.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hasten.facts.machine import Machine

BATCHES_AHEAD = 2  # of each worker: torch's own default
MOST_AHEAD = 8  # a worker that is further ahead only holds memory: a step does not wait for the ninth batch either
WORKER_BYTES = 256 << 20  # of a worker process under spawn
MEMORY_SHARE = 0.5  # the most of a machine's memory that reading ahead may take; the job needs the rest
WORKERS_A_CORE = 2  # more take turns, also where they wait for a disk
AMPLE_BATCH_BYTES = 256 << 20  # where this many are free for every batch held, no batch has to be measured


@dataclass(kw_only=True, slots=True)
class LoaderOptions:
    workers: int = 0
    worker_kind: Literal["processes", "threads"] = "processes"
    prefetch_factor: int | None = None  # batches a worker keeps ready; None is torch's default, right without workers
    persistent_workers: bool = False
    pin_memory: bool = False
    device_prefetch: int = 0  # batches that are copied to the device while an earlier one computes
    device_transform: bool = False  # images are cropped and resized on the device, not where they are decoded
    cache: Path | bool = False  # store the steady part of the samples decoded: in this folder, or the default one
    in_memory: Literal["host", "device"] | None = None  # hold all samples as columns
    in_memory_share: float | None = None  # of the memory there, that they may take; None is the default one


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where batches go, for data sets that can prepare for it."""

    accelerator: bool = False  # to the memory of a device of its own
    transforms: bool = False  # the device crops and resizes too
    channels_last: bool = False  # the model computes in that layout


ON_HOST = Placement()


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Memory for reading ahead."""

    memory_bytes: int
    shared_bytes: int | None  # of /dev/shm; None where batches are not sent through it


def batches_held(workers: int, ahead: int) -> int:
    """Batches that exist at once: those that are ready, and the one that is computed on."""
    return workers * ahead + 1


def room_of(machine: Machine) -> Room:
    """For one rank of those on the machine."""
    shared = machine.shared_memory_bytes
    return Room(
        memory_bytes=int(machine.memory_bytes * MEMORY_SHARE) // machine.ranks,
        shared_bytes=None if shared is None else shared // machine.ranks,
    )


def cores_of(machine: Machine) -> int:
    """For one rank of those on the machine."""
    return max(machine.cores // machine.ranks, 1)


def is_ample(shared_bytes: int | None, workers: int, ahead: int) -> bool:
    """Whether /dev/shm has room for these workers whatever a batch may hold within reason."""
    return shared_bytes is None or shared_bytes >= batches_held(workers, ahead) * AMPLE_BATCH_BYTES


def worker_counts(cores: int) -> list[int]:
    """Counts of worker processes worth trying: the cores first, then each half of them, then beyond them."""
    return [*(cores >> halvings for halvings in range(cores.bit_length())), cores * WORKERS_A_CORE]


def most_workers(room: Room, *, ahead: int, batch_bytes: int) -> int:
    """How many worker processes fit, each `ahead` batches of batch_bytes ahead."""
    by_memory = max(room.memory_bytes - batch_bytes, 0) // (WORKER_BYTES + ahead * batch_bytes)
    return min(by_memory, _shared_batches(room, batch_bytes, by_memory * ahead) // ahead)


def most_ahead(room: Room, *, workers: int, batch_bytes: int) -> int:
    """How many batches each of these workers may keep ready."""
    if batch_bytes == 0:
        return MOST_AHEAD
    by_memory = max((room.memory_bytes - workers * WORKER_BYTES) // batch_bytes - 1, 0)
    return min(_shared_batches(room, batch_bytes, by_memory) // workers, MOST_AHEAD)


def _shared_batches(room: Room, batch_bytes: int, most: int) -> int:
    """How many batches fit into /dev/shm beside the one that is computed on; `most`, or fewer."""
    if room.shared_bytes is None or batch_bytes == 0:
        return most
    return min(most, max(room.shared_bytes // batch_bytes - 1, 0))
