"""What windows of steps, and samples of their stack, say of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median, quantiles
from typing import TYPE_CHECKING

from hasten.doctor.operations import Tally
from hasten.doctor.places import Place, is_users, lines_of_loops, shown
from hasten.facts.run_look import Compiled, Line, Seconds
from hasten.measure.paired import early_speedup
from hasten.measure.stacks import Stacks, share

if TYPE_CHECKING:
    from hasten.doctor.compiler_notes import Note


_LEAST_GROWTH = 16 << 10  # bytes a step: less is what an allocator does by itself


def seconds_of(windows: Sequence[float]) -> Seconds:
    return Seconds(value=median(windows), low=min(windows), high=max(windows))


def with_fastest(windows: Seconds, steps: Sequence[float]) -> Seconds:
    """With the fastest tenth of single steps as the low end: what a bound has to reckon with."""
    fastest = quantiles(steps, n=10)[0] if len(steps) > 1 else windows.low
    return replace(windows, low=min(windows.low, fastest))


def growth(memory: Sequence[tuple[int, int]]) -> int | None:
    """Bytes a step at least, where memory grew in all rounds of the second half: setting up is over by then."""
    later = memory[len(memory) // 2 - 1 :]
    grown = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(later)]
    return int(min(grown)) if grown and min(grown) > _LEAST_GROWTH else None


def compiled(notes: Mapping[Note, int]) -> tuple[Compiled, ...]:
    """Those about the user's code, the most frequent first."""
    often = sorted(((note, times) for note, times in notes.items() if is_users(note.path)), key=lambda each: -each[1])
    return tuple(Compiled(path=shown(note.path), line=note.line, why=note.why, times=times) for note, times in often)


def line_of(place: Place, stacks: Stacks, seconds: float, tally: Tally, timed: float) -> Line:
    """seconds: of a step, which the stacks are samples of; timed: of the line itself."""
    _, value, high = share(stacks.counts[place], stacks.samples)
    return Line(
        path=shown(place.path),
        line=place.line,
        function=place.function,
        in_loading=place.in_loading,
        in_a_loop=place.line in lines_of_loops(place.path),
        seconds=value * seconds,
        high=max(high * seconds, timed),
        timed=timed,
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
