"""Whether the first step of a plan that claims equal statistics is the baseline's.

Before any update both arms have the same weights and read the same batch. So the loss and the norm of the gradient
differ by rounding, which a bound allows for, and by what the plan draws at random in another way, which differs from
seed to seed as well. A term that is added to the loss, or a factor, is the same from every seed: of label smoothing by
0.1, the gradient is a tenth smaller, while the loss of a new model stays.

What changes in another measure from every seed is not seen, nor what turns a gradient without changing its size, as
noise that is added to it: in bfloat16, and with other samples, an honest gradient turns as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

from hasten.measure.loss_equivalence import critical

BOUND = 2**-5  # eight times the distance of two numbers in bfloat16
RARE = 0.005  # probability of rejecting what differs by its random numbers alone, in either direction


def beyond_rounding(what: str, pairs: Sequence[tuple[float, float]]) -> str:
    """How it differs in a plan's first step, in a sentence; "" where it does not. pairs: one for each seed, the
    baseline's number and the plan's. One whose baseline is not finite says nothing."""
    finite = [(before, after) for before, after in pairs if math.isfinite(before)]
    broken = [after for _, after in finite if not math.isfinite(after)]
    if broken:
        return f"{what} of the first step, before any update, is {broken[0]} with it"
    shares = [(after - before) / abs(before) for before, after in finite if before]
    if len(shares) < 2:
        return ""
    error = critical(len(shares), RARE) * stdev(shares) / math.sqrt(len(shares))
    change = mean(shares)
    if abs(change) - error <= BOUND:
        return ""
    return (
        f"{what} of the first step, before any update, is {abs(change):.1%} {'larger' if change > 0 else 'smaller'} "
        f"with it, from {len(shares)} seeds; rounding changes it by {BOUND:.0%} at most"
    )
