"""What loading costs a step, and what it does meanwhile."""

from __future__ import annotations

from hasten.doctor.rule import FoundInRun
from hasten.doctor.run_rules.step_costs import MUCH
from hasten.facts.profiles import RunProfile

_BUSY = 0.5  # of its cores, from which on reading computes rather than waits
_NEARLY_ALL = 0.99  # of a step
_FASTEST = 0.9  # times the shortest steps that were measured: other steps may be so much faster
_COLD = 1.5  # times what reading takes, that a step may gain without it


def is_waiting(profile: RunProfile) -> bool:
    """In most of its windows, and for long."""
    return profile.waited.value > MUCH * profile.together.value


def is_computing(profile: RunProfile) -> bool:
    return profile.loading_cpu > _BUSY * profile.reading_cores * profile.loading.value


def waiting(profile: RunProfile, meanwhile: str) -> FoundInRun:
    """At the slowest line of loading. meanwhile: what reading does, in words.

    Free loading saves at most all but the fastest steps whose batches are loaded already. That may be more than the
    wait: workers take cores from the step, and caches are cold after a wait. Without workers it is not much more than
    reading takes.
    """
    together, waited, computing = profile.together, profile.waited, profile.computing
    # The last, as the batches that are loaded already may be the long ones.
    fastest = min(_FASTEST * computing.low, together.low - waited.high)
    seconds = together.value - max(0.0, fastest)
    if not profile.workers:
        seconds = min(seconds, _COLD * max(waited.high, profile.loading.high))
    many = seconds >= _NEARLY_ALL * together.value
    times = "many" if many else f"at most {together.value / (together.value - seconds):.2g}"
    lines = [line for line in profile.lines if line.in_loading]
    slowest = max(lines, key=lambda line: line.seconds, default=None)
    return FoundInRun(f"free loading would make a step {times} times as fast; {meanwhile}", seconds, slowest)
