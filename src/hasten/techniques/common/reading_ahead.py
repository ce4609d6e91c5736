"""What the techniques of reading ahead ask of a Setup: whether anything is read, and how large a batch is."""

from __future__ import annotations

from hasten.data.loading.limits import BATCHES_AHEAD, Room, is_ample
from hasten.data.workers.batch_pickling import parcel
from hasten.techniques.setup import Setup


def why_nothing_is_read(setup: Setup) -> str | None:
    """Why there is nothing that a worker could or may read ahead; None where there is."""
    if setup.train is None:
        return "there is no training data yet"
    if setup.train.on_accelerator:
        return "the training data is on the device already"
    if setup.train.why_not_ahead is not None:
        return setup.train.why_not_ahead
    if setup.train.gathers or setup.loader.in_memory is not None:
        return "batches are gathered from memory by index, in less time than it takes to send them between processes"
    return None


def why_no_process_reads(setup: Setup) -> str | None:
    """Why there is no worker process that a setting could change; None where there is one."""
    why = why_nothing_is_read(setup)
    if why is not None:
        return why
    if setup.loader.workers == 0:
        return "there are no loader workers"
    return "the loader's workers are threads" if setup.loader.worker_kind == "threads" else None


def batches_ahead(setup: Setup) -> int:
    return setup.loader.prefetch_factor or BATCHES_AHEAD


def batch_bytes(setup: Setup, room: Room, *, workers: int, ahead: int) -> int:
    """Of the tensors in one batch; 0 where there is room for any batch, as reading one can take a while."""
    return 0 if is_ample(room.shared_bytes, workers, ahead) else parcel(setup.sample).shared_bytes
