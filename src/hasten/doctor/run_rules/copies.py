"""Copies of tensors in every step.

What it finds: Lines of the job that copy tensors or convert their dtype, where the copies take a twentieth of the step
or more. Copies inside layers and conversions under autocast are not counted. Those in a loop of many operations are
left to H704.

Why it costs: A copy reads and writes every byte, and its backward pass does so again. What it evicts from the caches
has to be read once more, which may take as long again, so the bound is twice what the copies take.

When to ignore it: Where another type is needed at just that place, as a sum in float64 may be.

Fix: Keep one dtype through the model, use `as_tensor` for `tensor`, and views for clones.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import MUCH, by_function, loops
from hasten.facts.formatting import byte_size

_WITH_CACHES = 2.0  # times what copies take themselves


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    in_loops = loops(profile)
    lines = [line for line in profile.lines if line.copies and not line.in_loading and line not in in_loops]
    for function in by_function(lines):
        if 2 * sum(line.copying_seconds for line in function) > MUCH * profile.together.value:  # the backward pass too
            count, size = sum(line.copies for line in function), sum(line.copied_bytes for line in function)
            slowest = max(function, key=lambda line: line.copying_seconds)
            copies = "1 copy" if count == 1 else f"{count:,} copies"
            # What it computes on copies of another type may be slower as well, so all of its lines are the bound.
            backward = [_WITH_CACHES * line.copying_seconds for line in function]
            seconds = sum(backward) + sum(map(max, backward, (line.high for line in function)))
            message = f"{slowest.function} makes {copies} in a step, {byte_size(size)}"
            yield FoundInRun(message, min(seconds, profile.together.value), slowest)


RULE = RunRule(
    code="H706",
    fix="keep one type, and use views; as_tensor copies only where it must",
    check=check,
)
