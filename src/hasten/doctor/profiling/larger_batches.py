"""What a step takes with larger batches: how much of it does not depend on its samples.

Where most does not, sizes are tried until one more sample does not become cheaper any more: with few samples most cores
have nothing to do, so what each takes there is more than it need be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from hasten.doctor.profiling.line_costs import seconds_of
from hasten.doctor.profiling.reasons import reason_of
from hasten.doctor.profiling.repeated_batches import enlarged, first_window
from hasten.doctor.profiling.timed_steps import Stretches
from hasten.facts.formatting import byte_size
from hasten.facts.machine import free_memory
from hasten.facts.profiles import LARGER, LITTLE, LargerBatch
from hasten.training.run import Run

_TIMES_TAKEN = 3
_CHEAPER = 0.9  # times what a sample took between the sizes before; what is closer may be noise
_SPARE = 2  # times what a larger batch needs, that must be free: where memory is short a system ends the process


class LargerBatches(NamedTuple):
    """refused: why the next was not tried; failed: what it raised. Each is "" where nothing was in the way."""

    found: tuple[LargerBatch, ...] = ()
    refused: str = ""
    failed: str = ""


def larger_batches(
    run: Run, stretches: Stretches, kept: list[Any], steps: int, step_bytes: Callable[[], int]
) -> LargerBatches:
    """One batch of those that are kept, as it is and LARGER times, as long as that tells more. step_bytes: what
    steps have taken of the host's memory so far."""
    found, largest, refused, failed = list[LargerBatch](), 1, "", ""
    samples, window = run.built.fingerprint.samples, first_window(kept)
    for times in LARGER:
        refused = _too_few(samples, times * run.built.batch_size) or _too_large(run, times * step_bytes() // largest)
        larger = None if refused else enlarged(window, times)
        if larger is None:
            refused = refused or "its batches are not tensors of one row a sample"
            break
        try:
            one = {} if found else {1: window}  # by it, as other batches may take longer or shorter
            found += _tried(run, stretches, {**one, times: larger}, max(2, steps // times))
        # Memory may be short, or a model written for one size of batch, and what it raises then is its own.
        except Exception as error:
            failed = reason_of(error)
        if failed:  # outside the except block: its traceback would keep the batch's tensors alive
            if run.device.type == "cuda":
                torch.cuda.empty_cache()
            break
        if not tells_more([(each.times, each.step.value) for each in found]):
            break
        largest = times
    return LargerBatches(tuple(found), refused, failed)


def tells_more(taken: Sequence[tuple[int, float]]) -> bool:
    """Whether a still larger batch would, by the sizes that were tried and the seconds that their steps took."""
    much = [later > LITTLE * earlier for (_, earlier), (_, later) in pairwise(taken)]
    if len(much) == 1 or not much[-1]:
        return not much[-1]
    if not much[-2]:  # it is the first whose samples take more than all else does
        return True
    before, after = [(later - earlier) / (many - few) for (few, earlier), (many, later) in pairwise(taken[-3:])]
    return after < _CHEAPER * before


def _tried(run: Run, stretches: Stretches, windows: dict[int, list[Any]], steps: int) -> list[LargerBatch]:
    """Each, by its size, in turn. The least of a few readings stands for them: all else that is read meanwhile only
    makes one longer."""
    size, found = run.loader.microbatch_size, list[LargerBatch]()
    taken = {times: list[float]() for times in windows}
    for _ in range(_TIMES_TAKEN):
        for times, window in windows.items():
            with stretches.free(window):
                taken[times].append(stretches.take(steps).seconds)
    for times, seconds in taken.items():
        with closing(run.built.batches.loader_of(run.built.batch_size * times, size and size * times)) as loader:
            loading = min(stretches.read(steps, loader)[0] for _ in range(_TIMES_TAKEN))
        found.append(LargerBatch(times=times, step=seconds_of(seconds), loading=loading))
    return found


def _too_few(samples: int | None, wanted: int) -> str:
    if samples is None or samples >= wanted:
        return ""
    return f"the data has {samples:,} {'sample' if samples == 1 else 'samples'}"


def _too_large(run: Run, needed: int) -> str:
    if run.device.type != "cpu":  # whose memory refuses in time
        return ""
    free = free_memory()
    return f"it may need {byte_size(needed)}, and {byte_size(free)} are free" if _SPARE * needed > free else ""
