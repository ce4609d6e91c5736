"""What a step costs however few samples it has, and how much of it is a loop in the user's code."""

from __future__ import annotations

from collections import Counter

from hasten.facts.run_look import Line, RunLook

OFTEN = 24  # operations of one line in a step: a layer has a few, a loop many
_TIMES = 4  # the larger batch that was tried


def fixed_seconds(look: RunLook) -> float:
    """Seconds of a step that do not depend on its samples, at most; 0 where no larger batch was tried."""
    if look.larger is None:
        return 0.0
    per_batch = max(0.0, look.larger.low - look.computing.high) / (_TIMES - 1)
    return max(0.0, look.computing.value - per_batch)


def loops(look: RunLook) -> list[Line]:
    """Lines of steps that begin many operations, or that wait in Python for none."""
    return [line for line in look.lines if not line.in_loading and line.operations >= OFTEN]


def share_of_loops(look: RunLook) -> float:
    """Of the operations that the user's lines begin, 0 to 1."""
    begun = sum(line.operations for line in look.lines if not line.in_loading)
    return sum(line.operations for line in loops(look)) / begun if begun else 0.0


def by_function(lines: list[Line]) -> list[list[Line]]:
    """The lines of each function, the one with the most operations first."""
    counts = Counter[tuple[str, str]]()
    for line in lines:
        counts[line.path, line.function] += line.operations
    return [
        sorted((each for each in lines if (each.path, each.function) == key), key=lambda each: -each.high)
        for key, _ in counts.most_common()
    ]
