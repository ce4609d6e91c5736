"""Seconds of a step with larger batches: how much of it does not depend on the number of samples.

Where most does not, larger sizes are tried until a sample becomes no cheaper: with few samples most cores are idle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from hasten.doctor.profiling.repeated_batches import enlarged, first_window
from hasten.doctor.profiling.timed_steps import TimedSteps, seconds_of
from hasten.doctor.profiling.user_lines import reason_of
from hasten.facts.formatting import byte_size
from hasten.facts.machine import free_memory
from hasten.facts.profiles import LARGER, LITTLE, LargerBatch
from hasten.training.run import Run

_TIMES_TAKEN = 3
_CHEAPER = 0.9  # times what a sample took between the sizes before; what is closer may be noise
_SPARE = 2  # times what a larger batch needs, that must be free: where memory is short a system ends the process


def larger_batches(
    run: Run, timed: TimedSteps, kept: list[Any], steps: int, step_bytes: Callable[[], int]
) -> tuple[tuple[LargerBatch, ...], str]:
    """One of these batches, once and LARGER times, as long as a larger one may be cheaper per sample; and why the next
    size could not be measured, "" where there was no need. step_bytes: of the host's memory, that steps have taken so
    far."""
    found, largest, window = list[LargerBatch](), 1, first_window(kept)
    for times in LARGER:
        refused = _too_few(run, times) or _too_large(run, times * step_bytes() // largest)
        try:
            larger = None if refused else enlarged(window, times)
            if larger is None:
                return tuple(found), refused or "its batches are not tensors of one row a sample"
            sizes = {times: larger} if found else {1: window, times: larger}  # other batches may be longer or shorter
            found += _tried(timed, sizes, max(2, steps // times))
        except Exception as error:  # memory is short, the model is for one size of batch, or its tensors are nested
            return tuple(found), reason_of(error)
        if not may_be_cheaper([(each.times, each.step.value) for each in found]):
            break
        largest = times
    return tuple(found), ""


def may_be_cheaper(taken: Sequence[tuple[int, float]]) -> bool:
    """Whether a still larger batch may be, per sample, by the sizes tried and the seconds of their steps."""
    much = [later > LITTLE * earlier for (_, earlier), (_, later) in pairwise(taken)]
    if len(much) == 1 or not much[-1]:
        return not much[-1]
    if not much[-2]:  # it is the first whose samples take more than all else does
        return True
    before, after = [(later - earlier) / (many - few) for (few, earlier), (many, later) in pairwise(taken[-3:])]
    return after < _CHEAPER * before


def _tried(timed: TimedSteps, windows: dict[int, list[Any]], steps: int) -> list[LargerBatch]:
    """Each size in turn."""
    taken = {times: list[float]() for times in windows}
    for _ in range(_TIMES_TAKEN):
        for times, window in windows.items():
            with timed.free(window):
                taken[times].append(timed.take(steps).seconds)
    return [LargerBatch(times=times, step=seconds_of(seconds)) for times, seconds in taken.items()]


def _too_few(run: Run, times: int) -> str:
    samples = run.built.fingerprint.samples
    return f"the data has {samples:,} samples" if samples and samples < times * run.built.batch_size else ""


def _too_large(run: Run, needed: int) -> str:
    if run.device.type != "cpu":  # whose memory refuses in time
        return ""
    free = free_memory()
    return f"it may need {byte_size(needed)}, and {byte_size(free)} are free" if _SPARE * needed > free else ""
