"""When a whole plan counts as proven."""

from __future__ import annotations

import pytest

from hasten.facts.choice import Choice, Speedup
from hasten.facts.trials import Confirmed, Costs
from hasten.tune.final import is_proven

COSTS = Costs(one_off=0, step=1, turn=0, evaluation=0, total=100, peak_bytes=0)


def ratio(low: float, middle: float, high: float) -> Speedup:
    return Speedup(ratio=middle, low=low, high=high, pairs=12)


def confirmed(speedup: Speedup, noise: Speedup) -> Confirmed:
    choices = (Choice(technique="precision", value="bf16"),)
    return Confirmed(choices=choices, speedup=speedup, noise=noise, plain=COSTS, planned=COSTS, earned=())


@pytest.mark.parametrize(
    ("speedup", "noise", "proven"),
    [
        (ratio(1.2, 1.3, 1.4), ratio(0.98, 1.0, 1.02), True),
        (ratio(0.99, 1.3, 1.6), ratio(0.98, 1.0, 1.02), False),  # its interval reaches down to 1
        (ratio(1.001, 1.005, 1.01), ratio(0.999, 1.0, 1.001), False),  # sure, and not worth it
        (ratio(1.05, 1.1, 1.15), ratio(1.02, 1.08, 1.1), False),  # equal arms lie as far apart
        (ratio(1.05, 1.1, 1.15), ratio(0.9, 0.93, 0.97), False),  # to the other side
        (ratio(1.2, 1.3, 1.4), ratio(1.02, 1.08, 1.1), True),
    ],
)
def test_a_plan_is_proven_where_it_is_surely_faster_and_farther_off_than_equal_arms(
    speedup: Speedup, noise: Speedup, proven: bool
):
    assert is_proven(confirmed(speedup, noise)) is proven
