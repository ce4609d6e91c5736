"""What the confirmation of a whole plan says: whether the search keeps it, and in which words the report tells it."""

from __future__ import annotations

from enum import StrEnum

from hasten.facts.choice import Speedup
from hasten.facts.trials import Confirmed

LEAST_GAIN = 1.01  # a speed-up below this is no gain, however sure it is
EQUAL_PROCESSES = 1.03  # processes of the same code differ by so much for as long as they live


class Verdict(StrEnum):
    """On a plan as a whole. It is proven where it is FASTER."""

    FASTER = "faster"
    WITHIN_NOISE = "no farther off than the job beside itself"
    TOO_LITTLE = "gains less than 1 %"
    NO_DIFFERENCE = "no difference"
    SLOWER = "slower"


def verdict_of(confirmed: Confirmed) -> Verdict:
    found, noise = confirmed.speedup, confirmed.noise
    if found.high < 1:
        return Verdict.SLOWER
    if not found.low > 1:
        return Verdict.NO_DIFFERENCE
    farthest = max(noise.high, 1 / noise.low) if noise.low > 0 else 1.0  # that equal arms lie apart
    if (noise.low > 1 or noise.high < 1) and found.low <= farthest:
        return Verdict.WITHIN_NOISE
    if found.ratio < LEAST_GAIN:
        return Verdict.TOO_LITTLE
    return Verdict.FASTER if found.ratio > farthest else Verdict.WITHIN_NOISE


def differs_from_itself(noise: Speedup) -> bool:
    """Whether the job surely is faster or slower in a second process, by more than processes of the same code are.
    Then something else changed its speed."""
    return noise.low > EQUAL_PROCESSES or noise.high < 1 / EQUAL_PROCESSES


def is_proven(confirmed: Confirmed) -> bool:
    """Whether there is a plan, and it is faster than the job by more than the job is faster, or slower, than itself."""
    return bool(confirmed.choices) and verdict_of(confirmed) is Verdict.FASTER
