"""Copies of tensors in every step.

What it finds: Lines of the job that copy tensors or convert them to another type, where the copies take a twentieth of
the step or more. Copies that a layer makes for itself are not counted, nor are conversions under autocast: most are
its own. Many small ones in a loop are the loop's business: H704.

Why it costs: A copy reads and writes every byte, and its backward pass does so again. It computes nothing. What it
pushes out of the caches has to be read once more by what follows, which may take as long again, so the bound is twice
what the copies take.

When to ignore it: Where another type is needed at just that place, as a sum in float64 may be.

Fix: Keep one type through the model, use `as_tensor` for `tensor`, views for clones, and make tensors where they are
needed.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule, Severity
from hasten.doctor.run_rules.step_costs import MUCH, by_function, loops
from hasten.facts.formatting import byte_size

_SMALL = 1 << 16  # bytes of a copy, whose price is that of an operation
_WITH_CACHES = 2.0  # times what copies take themselves


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    in_loops = [line for line in loops(profile) if line.copied_bytes < _SMALL * line.copies]
    lines = [line for line in profile.lines if line.copies and not line.in_loading and line not in in_loops]
    copied = sum(line.copying_seconds for line in lines)
    for function in by_function(lines):
        own = sum(line.copying_seconds for line in function)
        backward = profile.backward_copying * own / copied if copied else 0.0
        if own + backward > MUCH * profile.together.value:
            count, bytes_ = sum(line.copies for line in function), sum(line.copied_bytes for line in function)
            first = max(function, key=lambda line: line.copying_seconds)
            message = (
                f"{first.function} makes {count:,} {'copies' if count > 1 else 'copy'} in a step, {byte_size(bytes_)}"
            )
            # What it computes on copies of another type may be slower as well, so all of its lines are the bound.
            forward = sum(max(line.high, _WITH_CACHES * line.copying_seconds) for line in function)
            yield FoundInRun(message, min(forward + _WITH_CACHES * backward, profile.together.value), first)


RULE = RunRule(
    code="H706",
    severity=Severity.SLOW,
    fix="keep one type, and use views; as_tensor copies only where it must",
    check=check,
)
