"""What a step costs however few samples it has, and how much of it is the user's own Python."""

from __future__ import annotations

from hasten.doctor.rule import FoundInRun
from hasten.facts.finding import Price
from hasten.facts.profiles import Line, LoopCost, RunProfile

MUCH = 0.05  # of a step: what may gain less is not reported
OFTEN = 24  # operations that one line begins itself in a step, or turns of its loop
AGAIN = 8  # turns of a loop: what fewer begin may be long, and is not much
_MOSTLY = 0.5  # of what a loop begins: the rest is of layers that are called once, as in a deep network
_LEAST = 0.5  # of the seconds between two sizes, where their ranges touch
_RARELY = 0.25  # of what samples say
LONG = 0.2  # of a step, on a line without any


def fixed_seconds(profile: RunProfile) -> float:
    """Seconds of a step that do not depend on its samples, at most; 0 where no larger batch was tried."""
    if not profile.larger:
        return 0.0
    # The last two: samples of a small batch cost more each, as most of a processor has nothing to do with them.
    smaller, larger = profile.larger[-2:]
    least = max(larger.step.low - smaller.step.high, _LEAST * (larger.step.value - smaller.step.value), 0.0)
    per_batch = least / (larger.times - smaller.times)
    return max(0.0, profile.larger[0].step.value - per_batch)


def fixed_loading_seconds(profile: RunProfile) -> float:
    """Of what a step waits for its data: seconds that do not depend on its samples."""
    if not profile.larger:
        return 0.0
    largest = profile.larger[-1]
    per_batch = max(0.0, largest.loading - profile.loading.value) / (largest.times - 1)
    return min(profile.waited.value, max(0.0, profile.loading.value - per_batch))


def loops(profile: RunProfile) -> list[Line]:
    """Lines in loops of the user's code that begin the same operations many times."""
    return [line for line in profile.lines if line.in_a_loop and not line.in_loading and _begins_often(line)]


def turns_of(line: Line) -> LoopCost:
    """Of a line in a loop; where nothing is known of what it calls, its own and all of the backward pass."""
    return line.turns or LoopCost(
        operations=line.operations,
        again=line.direct,
        times=0,
        backward=1.0 if line.operations else 0.0,
        seconds=line.seconds,
        high=line.high,
        timed=line.timed,
    )


def stalls(profile: RunProfile) -> list[Line]:
    """Lines that are long and begin no operation, and those that are long in some steps only, whatever they do."""
    lines = [line for line in profile.lines if not line.in_loading and line.seconds > LONG * profile.together.value]
    return [line for line in lines if is_in_some_steps(profile, line) or _is_stalled(profile, line)]


def is_in_some_steps(profile: RunProfile, line: Line) -> bool:
    """Long by samples of many steps, and short in one of the few whose lines were traced."""
    traced = any(each.timed > 0 for each in profile.lines)
    return traced and not line.operations and line.timed < _RARELY * line.seconds


def stalled_seconds(profile: RunProfile) -> float:
    """Of a step."""
    return sum(line.seconds for line in stalls(profile))


def _begins_often(line: Line) -> bool:
    turns = turns_of(line)
    many = line.direct >= OFTEN or turns.times >= OFTEN
    turned = turns.passes is None or turns.passes >= AGAIN
    return many and turned and turns.again >= _MOSTLY * turns.operations


def _is_stalled(profile: RunProfile, line: Line) -> bool:
    """In every step, and without an operation that was counted; those of a compiled model are not."""
    return profile.operations > 0 and not line.operations and line.timed > LONG * profile.together.value


def share_of_loops(profile: RunProfile) -> float:
    """Of the operations that the user's lines begin, 0 to 1."""
    begun = sum(line.operations for line in profile.lines if not line.in_loading)
    in_loops = sum(turns_of(line).operations for line in loops(profile))
    return min(1.0, in_loops / begun) if begun else 0.0  # those of a loop in a loop are in both


def by_function(lines: list[Line]) -> list[list[Line]]:
    """The lines of each function, its slowest first."""
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.path, line.function), []).append(line)
    return [sorted(each, key=lambda line: -line.high) for each in groups.values()]


def price_of(profile: RunProfile, found: FoundInRun) -> Price | None:
    """At most all of an epoch."""
    if found.step_seconds is None:
        return None
    seconds = found.step_seconds * profile.epoch_steps + found.epoch_seconds
    return Price(seconds=min(seconds, profile.epoch_seconds), epoch_seconds=profile.epoch_seconds)
