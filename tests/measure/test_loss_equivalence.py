from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hasten.errors import InvalidMeasurement
from hasten.measure.loss_equivalence import LEAST_PAIRS, MOST_PAIRS, Criterion, critical, final_values, judge

LOSS = Criterion()
ACCURACY = Criterion(metric="accuracy", higher_is_better=True)
MIRROR = {"harmed": "better", "better": "harmed", "equivalent": "equivalent", "inconclusive": "inconclusive"}

# Upper 5 % points of Student's t by degrees of freedom, as printed tables give them.
TABLE = {2: 2.920, 4: 2.132, 9: 1.833, 29: 1.699, 120: 1.658}

SHARES = st.lists(st.floats(-0.03, 0.03), min_size=LEAST_PAIRS, max_size=12)
HARMS = st.floats(-0.02, 0.02)


def arms(harms, mean=2.0):
    """A plain arm of this mean, whose seeds differ far more than the arms do, and one worse by these shares."""
    seeds = np.linspace(-0.2, 0.2, len(harms)) * mean
    plain = mean + seeds - seeds.mean()
    return plain.tolist(), (plain + mean * np.asarray(harms)).tolist()


def verdict(harms, criterion=LOSS):
    return judge(*arms(harms), criterion)


def spread_of(harms, spread, harm):
    """The same pairs, moved and stretched until their mean and standard deviation are exactly these."""
    centred = np.asarray(harms) - np.mean(harms)
    return harm + centred / centred.std(ddof=1) * spread


def shares_beyond(*, harm, spread, pairs):
    """The shares of 100 000 simulated tests that prove harm, and that settle it either way."""
    drawn = np.random.default_rng(6).normal(harm, spread, (100_000, pairs))
    middles, halves = drawn.mean(axis=1), critical(pairs) * drawn.std(axis=1, ddof=1) / math.sqrt(pairs)
    harmed = middles - halves > LOSS.margin
    better, inside = middles + halves < -LOSS.margin, np.abs(middles) + halves < LOSS.margin
    return harmed.mean(), (harmed | better | inside).mean()


def verdicts(*, harm, spread, pairs, runs, seed):
    """How often each verdict falls over simulated tests with normal differences."""
    generator = np.random.default_rng(seed)
    return Counter(verdict(generator.normal(harm, spread, pairs)).verdict for _ in range(runs))


def test_students_bound_is_the_one_of_the_printed_tables():
    assert {free: critical(free + 1) for free in TABLE} == pytest.approx(TABLE, abs=5.001e-4)


@pytest.mark.parametrize(
    ("harms", "expected", "unharmed"),
    [
        ([0.0, 0.0, 0.0], "equivalent", True),
        ([0.001, -0.001, 0.0, 0.001], "equivalent", True),
        ([0.004, 0.004, 0.004], "equivalent", True),
        ([0.011, 0.012, 0.013], "harmed", False),
        ([-0.011, -0.012, -0.013], "better", True),
        ([-0.002, -0.004, -0.006], "inconclusive", True),  # no harm, but perhaps a gain that is no sameness
        ([0.002, 0.004, 0.006], "inconclusive", False),
        ([0.02, -0.02, 0.01, -0.01], "inconclusive", False),
    ],
)
def test_a_verdict_follows_from_where_the_interval_lies(harms, expected, unharmed):
    found = verdict(harms)
    assert (found.verdict, found.unharmed) == (expected, unharmed)
    assert (found.pairs_needed is None) == (expected != "inconclusive")


def test_a_higher_accuracy_is_better_and_a_lower_one_a_harm():
    plain, higher = arms([0.011, 0.012, 0.013])
    assert judge(plain, higher, ACCURACY).verdict == "better"
    assert judge(higher, plain, ACCURACY).verdict == "harmed"


@given(SHARES, HARMS)
def test_swapping_the_arms_mirrors_the_verdict(shares, harm):
    plain, planned = arms(np.asarray(shares) + harm)
    there = judge(plain, planned, LOSS)
    # The margin is relative to the arm that is called plain, so the same margin is another share of the other arm.
    margin = LOSS.margin * np.mean(plain) / np.mean(planned)
    back = judge(planned, plain, Criterion(margin=margin))
    assume(min(abs(abs(end) - LOSS.margin) for end in (there.low, there.high)) > 1e-9)
    assert back.verdict == MIRROR[there.verdict]
    scale = np.mean(planned) / np.mean(plain)
    assert [-scale * back.high, -scale * back.low] == pytest.approx([there.low, there.high], abs=1e-12)


def test_equal_arms_pass_in_four_of_five_tests_where_the_power_is_adequate():
    found = verdicts(harm=0, spread=0.0035, pairs=8, runs=300, seed=1)
    assert found["equivalent"] >= 240
    assert found["harmed"] + found["better"] == 0


@pytest.mark.parametrize("pairs", [3, 8])
def test_a_harm_exactly_at_the_margin_is_settled_either_way_at_the_stated_rate(pairs):
    """5 % of 600 is 30; 16 is three standard deviations of such a count. The test of three pairs is as honest."""
    found = verdicts(harm=LOSS.margin, spread=0.001, pairs=pairs, runs=600, seed=3)
    assert found["equivalent"] == pytest.approx(30, abs=16)
    assert found["harmed"] == pytest.approx(30, abs=16)


@pytest.mark.parametrize("pairs", [3, 4, 8])
def test_the_stated_power_is_exact_with_few_pairs_too(pairs):
    """Three standard deviations of a share of 80 % in 100 000 are 0.0038."""
    stated = verdict(spread_of(range(pairs), 0.004, 0)).visible_harm
    harmed, _ = shares_beyond(harm=stated, spread=0.004, pairs=pairs)
    assert harmed == pytest.approx(0.8, abs=0.0038)


@pytest.mark.parametrize(("harm", "spread"), [(0.0, 0.005), (0.008, 0.006), (-0.03, 0.022)])
def test_as_many_pairs_are_asked_for_as_settle_it_and_few_more(harm, spread):
    needed = verdict(spread_of(range(4), spread, harm)).pairs_needed
    assert shares_beyond(harm=harm, spread=spread, pairs=needed)[1] >= 0.8 - 0.0038
    assert shares_beyond(harm=harm, spread=spread, pairs=needed - 1)[1] < 0.91


def test_a_difference_at_the_margin_itself_is_never_settled():
    found = verdict(spread_of(range(4), 0.005, LOSS.margin))
    assert found.pairs_needed is None
    assert f"more than {MOST_PAIRS} pairs" in found.sentence


def test_an_inconclusive_verdict_says_what_it_could_not_have_seen_and_what_it_needs():
    found = verdict([0.02, -0.02, 0.01, -0.01])
    assert f"a true harm below {found.visible_harm:.2%}" in found.sentence
    assert f"needs {found.pairs_needed} pairs" in found.sentence
    assert found.visible_harm > LOSS.margin


@pytest.mark.trap(51)
@pytest.mark.parametrize(("arm", "value"), [("plain", math.nan), ("planned", -math.inf)])
def test_a_value_that_is_not_finite_is_refused_with_its_place(arm, value):
    values = {"plain": [2.0] * 5, "planned": [2.0] * 5}
    values[arm][3] = value
    with pytest.raises(InvalidMeasurement, match=f"loss of {arm}: value 3 is {value}"):
        judge(values["plain"], values["planned"], LOSS)


@pytest.mark.parametrize(
    ("plain", "planned", "what"),
    [
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], "mean is zero"),
        ([0.1, 0.2, -0.3], [1.0, 1.0, 1.0], "mean is zero"),  # 5.6e-17 by plain addition
    ],
)
def test_what_cannot_be_judged_is_refused_and_says_why(plain, planned, what):
    with pytest.raises(InvalidMeasurement, match=what) as refusal:
        judge(plain, planned, LOSS)
    assert refusal.value.fix


@pytest.mark.parametrize(("steps", "points"), [(1, 1), (9, 1), (19, 1), (20, 2), (105, 10)])
def test_the_final_value_is_the_mean_of_the_last_tenth(steps, points):
    curve = [float(step**2) for step in range(steps)]
    plain, planned = final_values([curve, curve], [curve, [2 * value for value in curve]])
    expected = sum(curve[-points:]) / points
    assert plain == (expected, expected)
    assert planned == (expected, 2 * expected)


@pytest.mark.trap(51)
@pytest.mark.parametrize("step", [0, 19])
def test_a_curve_with_a_hole_anywhere_is_refused(step):
    holed = [1.0] * 20
    holed[step] = math.nan
    with pytest.raises(InvalidMeasurement, match=rf"planned, curve 1: value {step} is nan"):
        final_values([[1.0] * 20] * 2, [[1.0] * 20, holed])
