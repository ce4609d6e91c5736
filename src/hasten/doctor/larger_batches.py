"""What a step takes with larger batches: how much of it does not depend on its samples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch

from hasten.doctor.free_loading import enlarged, first_window
from hasten.doctor.reasons import reason_of
from hasten.doctor.stretches import Stretches
from hasten.doctor.timings import seconds_of
from hasten.facts.machine import free_memory
from hasten.facts.run_look import LARGER, LITTLE, Larger
from hasten.facts.sizes import byte_size
from hasten.training.run import Run
from hasten.training.run_loaders import train_loader

_TIMES_TAKEN = 3
_SPARE = 2  # times what a larger batch needs, that must be free: where memory is short a system ends the process


def larger_batches(
    run: Run, stretches: Stretches, kept: list[Any], steps: int, computing: float, step_bytes: Callable[[], int]
) -> tuple[tuple[Larger, ...], str]:
    """Batches of LARGER times the size, as long as each step takes little longer than the one before; and why the next
    was not tried, "" where nothing was in the way.

    kept: microbatches. computing: seconds of a step as it is. step_bytes: what steps have taken of the
    host's memory so far.
    """
    found, before, largest, refused = list[Larger](), computing, 1, ""
    samples = run.built.fingerprint.samples
    for times in LARGER:
        refused = _too_few(samples, times * run.built.batch_size) or _too_large(run, times * step_bytes() // largest)
        if refused:
            break
        window = enlarged(first_window(kept), times)
        if window is None:
            refused = "its batches are not tensors of one row a sample"
            break
        try:
            found.append(_tried(run, stretches, window, times, max(2, steps // times)))
        # Memory may be short, or a model written for one size of batch, and what it raises then is its own.
        except Exception as error:
            refused = reason_of(error)
        if refused:  # outside the except block: its traceback would keep the batch's tensors alive
            if run.device.type == "cuda":
                torch.cuda.empty_cache()
            break
        if found[-1].step.value > LITTLE * before:
            break
        before, largest = found[-1].step.value, times
    return tuple(found), refused


def _tried(run: Run, stretches: Stretches, window: list[Any], times: int, steps: int) -> Larger:
    """The least of a few readings stands for them: all else that is read meanwhile only makes one longer."""
    size = run.microbatch_size
    with stretches.free(window):
        taken = [stretches.take(steps).seconds for _ in range(_TIMES_TAKEN)]
    with closing(train_loader(run, size and size * times, run.built.batch_size * times)) as loader:
        loading = min(stretches.read(steps, loader)[0] for _ in range(_TIMES_TAKEN))
    return Larger(times=times, step=seconds_of(taken), loading=loading)


def _too_few(samples: int | None, wanted: int) -> str:
    return f"the data has {samples:,} samples" if samples is not None and samples < wanted else ""


def _too_large(run: Run, needed: int) -> str:
    if run.device.type != "cpu":  # whose memory refuses in time
        return ""
    free = free_memory()
    return f"it may need {byte_size(needed)}, and {byte_size(free)} are free" if _SPARE * needed > free else ""
