"""What loading costs a step, what a step costs however few samples it has, and how much is the user's own Python."""

from __future__ import annotations

from hasten.doctor.rule import FoundInRun
from hasten.facts.finding import Price
from hasten.facts.profiles import Line, RunProfile

MUCH = 0.05  # of a step: what may gain less is not reported
OFTEN = 24  # operations that one line begins itself in a step, or turns of its loop
AGAIN = 8  # turns of a loop: what fewer begin may be long, and is not much
_LEAST = 0.5  # of the seconds between two sizes, where their ranges touch
LONG = 0.2  # of a step, on a line without any
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
    """At the slowest line of loading. meanwhile: what loading does, in words.

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
    message = f"training waits for data: without the wait a step is {times} times as fast; {meanwhile}"
    return FoundInRun(message, seconds, slowest)


def seconds_of_samples(profile: RunProfile) -> float:
    """Of a step, at least: what grows with its samples, by the two largest sizes that were tried. Samples of a small
    batch cost more each, as most of a processor has nothing to do with them."""
    smaller, larger = profile.larger[-2:]
    least = max(larger.step.low - smaller.step.high, _LEAST * (larger.step.value - smaller.step.value), 0.0)
    return least / (larger.times - smaller.times)


def loops(profile: RunProfile) -> list[Line]:
    """Lines in loops of the user's code that begin the same operations many times."""
    return [line for line in profile.lines if not line.in_loading and _begins_often(line)]


def _begins_often(line: Line) -> bool:
    turns = line.turns
    if turns is None or turns.over_layers or turns.operations < OFTEN:
        return False
    return turns.passes >= AGAIN and (line.direct >= OFTEN or turns.passes >= OFTEN)


def stalls(profile: RunProfile) -> list[Line]:
    """Lines that are long and begin no operation."""
    lines = [line for line in profile.lines if not line.in_loading and line.seconds > LONG * profile.together.value]
    return [line for line in lines if _is_stalled(profile, line)]


def _is_stalled(profile: RunProfile, line: Line) -> bool:
    """In every step, and without an operation that was counted; those of a compiled model are not."""
    return profile.operations > 0 and not line.operations and line.timed > LONG * profile.together.value


def share_of_loops(profile: RunProfile, lines: list[Line]) -> float:
    """Of the operations that the user's lines begin, 0 to 1: those of these loops."""
    begun = sum(line.operations for line in profile.lines if not line.in_loading)
    in_loops = sum(line.turns.operations for line in lines if line.turns is not None)
    return min(1.0, in_loops / begun) if begun else 0.0  # those of a loop in a loop are in both


def by_function(lines: list[Line]) -> list[list[Line]]:
    """The lines of each function."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.path, line.function), []).append(line)
    return [*groups.values()]


def price_of(profile: RunProfile, found: FoundInRun) -> Price | None:
    """At most all of an epoch."""
    if found.step_seconds is None:
        return None
    seconds = found.step_seconds * profile.epoch_steps + found.epoch_seconds
    return Price(seconds=min(seconds, profile.epoch_seconds), whole_seconds=profile.epoch_seconds)
