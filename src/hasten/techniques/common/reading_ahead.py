"""For the techniques that read batches ahead: whether workers can read a Setup's data, and how large a batch is."""

from __future__ import annotations

from hasten.data.loading.loader_options import BATCHES_AHEAD, Room, is_ample
from hasten.data.workers.batch_pickling import shared_bytes_of
from hasten.techniques.setup import Setup


def why_nothing_is_read(setup: Setup) -> str | None:
    """Why no worker can read ahead; None where one can."""
    if setup.train is None:
        return "there is no training data yet"
    if setup.train.on_accelerator:
        return "the training data is on the device already"
    if setup.train.why_not_ahead is not None:
        return setup.train.why_not_ahead
    if setup.train.gathers or setup.loader.in_memory is not None:
        return "batches are gathered from memory by index, faster than they could be sent between processes"
    return None


def why_no_process_reads(setup: Setup) -> str | None:
    """Why no worker process reads, whose settings could change; None where one does."""
    why = why_nothing_is_read(setup)
    if why is not None:
        return why
    if setup.loader.workers == 0:
        return "there are no loader workers"
    return "the loader's workers are threads" if setup.loader.worker_kind == "threads" else None


def batches_ahead(setup: Setup) -> int:
    return setup.loader.prefetch_factor or BATCHES_AHEAD


def batch_bytes(setup: Setup, room: Room, *, workers: int, ahead: int) -> int:
    """The bytes of the tensors in one batch; 0 where there is memory for any batch, as reading one takes time."""
    return 0 if is_ample(room.shared_bytes, workers, ahead) else shared_bytes_of(setup.sample)
