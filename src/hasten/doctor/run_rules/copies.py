"""Tensors copied in every step.

What it finds: Lines of the job that copy tensors or convert their dtype, where the copies take at least 5 %
of the step. Copies inside layers and conversions by autocast are not counted. Copies in a loop of many
operations belong to H704.

Why it matters: A copy reads and writes every byte, and so does its backward pass. It also evicts other data
from the caches, so the upper bound is twice the time of the copies.

Fix: Keep one dtype through the model. Use `torch.as_tensor` instead of `torch.tensor`, and views instead of
clones.

    x = x.view(len(x), -1)  # no copy
    y = x.to(torch.float32)  # no copy if x is float32 already

When to ignore: Another dtype is needed at that place, for example a sum in float64.

Automatic fix: None.
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
            message = f"{slowest.function} makes {copies} of tensors in every step, {byte_size(size)} in all"
            yield FoundInRun(message, min(seconds, profile.together.value), slowest)


RULE = RunRule(
    code="H706",
    fix="keep one dtype, and use views; use as_tensor instead of tensor",
    check=check,
)
