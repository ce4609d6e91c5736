"""What loading costs a step, and what it does meanwhile."""

from __future__ import annotations

from hasten.doctor.rule import FoundInRun
from hasten.doctor.run_rules.step_costs import MUCH
from hasten.facts.profiles import RunProfile

_BUSY = 0.5  # of its cores, from which on reading computes rather than waits
_NEARLY_ALL = 0.99  # of a step
_COLD = 1.5  # times what reading takes, that a step may gain without it


def is_waiting(profile: RunProfile) -> bool:
    """In most of its windows, and for long."""
    beside = profile.together.value - profile.computing.value - profile.computing_error if profile.workers else 0.0
    return max(profile.waited.value, beside) > MUCH * profile.together.value


def is_computing(profile: RunProfile) -> bool:
    return profile.loading_cpu > _BUSY * profile.reading_cores * profile.loading.value


def waiting(profile: RunProfile, meanwhile: str) -> FoundInRun:
    """At the slowest line of loading. meanwhile: what reading does, in words.

    Free loading saves at most all but what the fastest steps take whose batches are there, which may be more than what
    is waited for: workers that read beside the step take cores from it, and caches are cold after a wait. Where nothing
    is read beside a step, it is not much more than reading takes: alone, where it may find warm what a step did not, or
    in a step. Where such steps could not be taken, nobody knows what workers cost.
    """
    together = profile.together.value
    # The last, as the batches that are there already may be the long ones.
    fastest = min(profile.computing.low, profile.computing.value - profile.computing_error, profile.unwaited.low)
    if profile.workers and profile.not_free:
        fastest = 0.0
    seconds = together - max(0.0, fastest)
    if not profile.workers:
        seconds = min(seconds, _COLD * max(profile.waited.high, profile.loading.high))
    left = together - min(seconds, _NEARLY_ALL * together)
    times = f"at most {together / left:.2g} times" if seconds < _NEARLY_ALL * together else "many times"
    lines = [line for line in profile.lines if line.in_loading]
    slowest = max(lines, key=lambda line: line.seconds, default=None)
    message = f"free loading would make a step {times} as fast; {meanwhile}"
    return FoundInRun(message, min(seconds, together), slowest)
