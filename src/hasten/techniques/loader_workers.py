"""Read samples in workers beside the training process, so that the step does not wait.

What it does: starts this many workers, each of which reads whole batches ahead. 0 reads in the training process.

Options: `kind`, "processes" (default) or "threads" of the training process.

Why it is faster: reading and decoding run while the step computes, on cores that it leaves free. Threads need no start,
no copy of the data set and no shared memory, but only one of them runs Python at a time. So they help where libraries
that release the GIL read the samples, as image decoders do. Processes help everywhere.

When it loses: on cores that the step itself keeps busy. Each worker process has memory of its own, and starts again in
every epoch unless `persistent_workers` is on. It sends its batches through /dev/shm, which is small in containers. A
cheap sample, for example a row of a tensor, is read faster than it is sent.

What it changes: nothing ("bit-exact"). A sample's content and position follow from the seed, the epoch and its index,
whatever the number of workers.

Limits: an iterable data set can have one worker at most. Threads are refused for data that may draw from the global
random generators.

Example:

    [[choice]]
    technique = "loader_workers"
    value = 4
    options = { kind = "threads" }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, cast

from hasten.data.loading.loader_options import cores_of, most_workers, room_of, worker_counts
from hasten.data.sources.job_data import why_not_in_threads
from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import is_whole, refused
from hasten.techniques.common.reading_ahead import batch_bytes, batches_ahead, why_nothing_is_read
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

MOST_A_CORE = 16  # more can only be a mistake


def applies(setup: Setup) -> Yes | No:
    why = why_nothing_is_read(setup)
    if why is not None:
        return No(why)
    machine = setup.machine
    if cores_of(machine) == 1 and machine.ranks > 1:
        return No(f"{machine.ranks} ranks share {machine.cores} cores, so none is free for loader workers")
    if machine.cores == 1:
        return No("this job may use only one core, and computes on it")
    if not candidates(setup):
        return No("memory and /dev/shm are too small for another number of loader workers")
    return Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    return [
        Choice(technique="loader_workers", value=count, preserves=Preserves.BITS, options=options)
        for kind, options in (("threads", {"kind": "threads"}), ("processes", {}))
        for count in _counts(setup, kind)
        if (count, kind) != (setup.loader.workers, setup.loader.worker_kind)
    ]


def _counts(setup: Setup, kind: str) -> Iterator[int]:
    if setup.train is None:
        return
    cores = cores_of(setup.machine)
    if kind == "threads":
        if why_not_in_threads(setup.train) is None:
            yield from (count for count in worker_counts(cores) if count <= cores)
        return
    counts = [1] if setup.train.iterable else worker_counts(cores)
    room, ahead = room_of(setup.machine), batches_ahead(setup)
    size = batch_bytes(setup, room, workers=max(counts), ahead=ahead)
    most = most_workers(room, ahead=ahead, batch_bytes=size)
    yield from (count for count in counts if count <= most)


def apply(setup: Setup, choice: Choice) -> None:
    count, kind = choice.value, choice.options.get("kind", "processes")
    if not is_whole(count, 0) or set(choice.options) - {"kind"} or kind not in ("processes", "threads"):
        raise refused(choice, 'write a whole number of 0 or more; the one option is kind, "processes" or "threads"')
    if count > MOST_A_CORE * setup.machine.cores:
        raise refused(choice, f"write a number near that of the cores here, {setup.machine.cores}")
    source, kind = setup.train, cast("Literal['processes', 'threads']", kind)
    if kind == "threads" and count and source is not None and (why := why_not_in_threads(source)) is not None:
        raise _refused(f"Job.{source.field} cannot be read in threads: {why}", 'write kind = "processes"')
    if count > 1 and source is not None and source.iterable:
        what = f"Job.{source.field} is an iterable data set, of which each of {count} workers would read all"
        raise _refused(what, "write 1 or 0, or give a map-style data set")
    setup.loader.workers, setup.loader.worker_kind = count, kind
    if count == 0:  # settings of the job's own DataLoader for its workers
        setup.loader.prefetch_factor, setup.loader.persistent_workers = None, False


def _refused(what: str, fix: str) -> PlanError:
    return PlanError(what, where="loader_workers", fix=fix)


TECHNIQUE = Technique(
    name="loader_workers",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values='a whole number, 0 or more: the workers; options: kind ("processes", the default, or "threads")',
    costs=("memory for each worker and for its batches", "workers start again in every epoch"),
    source="https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
