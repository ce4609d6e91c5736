"""What windows of steps, and samples of their stack, say of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from hasten.doctor.profiling.line_times import LineTimes
from hasten.doctor.profiling.operation_counts import Operations, Tally
from hasten.doctor.profiling.user_lines import Place, Where, is_users, shown
from hasten.facts.profiles import CompilerNote, Line, LoopCost, Seconds
from hasten.measure.paired_timing import early_speedup
from hasten.measure.stack_sampling import share

if TYPE_CHECKING:
    from hasten.doctor.profiling.compiler_log import Note


_LEAST_GROWTH = 16 << 10  # bytes a step: less is what an allocator does by itself


def seconds_of(windows: Sequence[float]) -> Seconds:
    return Seconds(value=median(windows), low=min(windows), high=max(windows))


def growth(memory: Sequence[tuple[int, int]]) -> int | None:
    """Bytes a step at least, where memory grew in all rounds of the second half: setting up is over by then."""
    later = memory[len(memory) // 2 - 1 :]
    grown = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(later)]
    return int(min(grown)) if grown and min(grown) > _LEAST_GROWTH else None


def compiled(notes: Mapping[Note, int]) -> tuple[CompilerNote, ...]:
    """Those about the user's code, the most frequent first."""
    often = sorted(((note, times) for note, times in notes.items() if is_users(note.path)), key=lambda each: -each[1])
    return tuple(
        CompilerNote(path=shown(note.path), line=note.line, why=note.why, times=times) for note, times in often
    )


def lines_of_steps(
    counts: Mapping[Hashable, int], step: float, operations: Operations | None, times: LineTimes
) -> list[Line]:
    """counts: of samples of the stack in steps, each of which takes so many seconds."""
    samples, own, whole = sum(counts.values()), Counter[Place](), Counter[Place]()
    for found, count in counts.items():
        if isinstance(found, Where):
            own.update({found.place: count} if found.place is not None else {})
            whole.update(dict.fromkeys(found.loops, count))
    tallies, loops = (operations.lines, operations.loops) if operations is not None else ({}, {})
    lines, in_loops = list[Line](), {*whole, *loops, *times.whole}
    for place in {*own, *whole, *tallies, *loops}:
        if place.in_loading:
            continue
        line = line_of(place, own[place], samples, step, times.seconds.get(place, 0.0), in_a_loop=place in in_loops)
        if place in tallies:
            line = _with_operations(line, tallies[place])
        if operations is not None and place in loops:
            loop, timed = loops[place], times.whole.get(place, 0.0)
            _, value, high = share(whole[place], samples)
            turns = LoopCost(
                operations=loop.operations,
                again=loop.again,
                times=loop.times,
                passes=times.passes.get(place),
                backward=operations.backward_share(place),
                seconds=value * step,
                high=max(high * step, timed),
                timed=timed,
            )
            line = replace(line, turns=turns)
        lines.append(line)
    return lines


def line_of(
    place: Place, found: int, samples: int, step: float, timed: float = 0.0, *, in_a_loop: bool = False
) -> Line:
    """found: samples of all of them, which are of what takes step seconds; timed: of the line itself."""
    _, value, high = share(found, samples)
    return Line(
        path=shown(place.path),
        line=place.line,
        function=place.function,
        in_loading=place.in_loading,
        in_a_loop=in_a_loop,
        seconds=value * step,
        high=max(high * step, timed),
        timed=timed,
    )


def _with_operations(line: Line, tally: Tally) -> Line:
    return replace(
        line,
        operations=tally.operations,
        direct=tally.direct,
        reads=tally.reads,
        copies=tally.copies,
        copied_bytes=tally.copied_bytes,
        copying_seconds=tally.copying_seconds,
    )


def ratio_of(challenger: Sequence[float], baseline: Sequence[float]) -> Seconds:
    found = early_speedup([a / b for a, b in zip(challenger, baseline, strict=True)])
    return Seconds(value=found.ratio, low=found.low, high=found.high)
