"""Ratios of two arms that take turns, and their intervals."""

from __future__ import annotations

import math
import random
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.errors import InvalidMeasurement
from hasten.facts.plan import Speedup
from hasten.measure.paired_timing import (
    LEAST_PAIRS,
    Window,
    compare,
    early_speedup,
    estimate,
    interleaved,
    over_processes,
)

DURATIONS = st.lists(st.floats(0.01, 100), min_size=LEAST_PAIRS, max_size=20)


def windows_of(a: list[float], b: list[float], steps: int = 50) -> list[Window]:
    """Windows as they would run: A B B A A B …"""
    left = {"a": iter(a), "b": iter(b)}
    return [Window(arm=arm, steps=steps, seconds=next(left[arm])) for arm in interleaved("ab", len(a))]


def noise(generator: np.random.Generator, rounds: int) -> list[float]:
    return list(np.exp(0.1 * generator.standard_normal(rounds)))


@settings(max_examples=15)
@given(DURATIONS, st.floats(0.01, 100))
def test_proportional_arms_give_exactly_their_ratio(durations, ratio):
    found = compare(windows_of([ratio * d for d in durations], durations), baseline="a", challenger="b").speedup
    assert found.pairs == len(durations)
    assert [found.low, found.ratio, found.high] == pytest.approx([ratio] * 3, rel=1e-12)


@settings(max_examples=15)
@given(DURATIONS, st.integers(0, 100))
def test_swapping_the_arms_inverts_the_ratio_and_its_interval(durations, seed):
    windows = windows_of(durations, noise(np.random.default_rng(seed), len(durations)))
    there = compare(windows, baseline="a", challenger="b")
    back = compare(windows, baseline="b", challenger="a")
    mirrored = [1 / back.speedup.high, 1 / back.speedup.ratio, 1 / back.speedup.low]
    assert [there.speedup.low, there.speedup.ratio, there.speedup.high] == pytest.approx(mirrored, rel=1e-9)
    assert there.extra.seconds == pytest.approx(-back.extra.seconds, abs=1e-12)


@pytest.mark.trap(50)
@pytest.mark.parametrize("pairs", [12, *(pytest.param(many, marks=pytest.mark.proof) for many in (13, 16, 24))])
def test_equal_arms_are_called_equal_at_the_stated_rate(pairs):
    generator = np.random.default_rng(1)
    experiments = [windows_of(noise(generator, pairs), noise(generator, pairs)) for _ in range(100)]
    covered = [not compare(windows, baseline="a", challenger="b").differs for windows in experiments]
    assert sum(covered) / len(covered) >= 0.93


@pytest.mark.trap(50)
def test_a_slow_arm_is_caught_in_the_same_noise():
    generator = np.random.default_rng(2)
    slower = [1.3 * seconds for seconds in noise(generator, 16)]
    found = compare(windows_of(noise(generator, 16), slower), baseline="a", challenger="b")
    assert found.differs
    assert found.speedup.high < 1
    assert found.extra.low > 0


def test_the_same_windows_always_give_the_same_interval():
    windows = windows_of(noise(np.random.default_rng(3), 12), noise(np.random.default_rng(4), 12))
    state = np.random.get_state()[1].tolist()
    assert compare(windows, baseline="a", challenger="b") == compare(windows, baseline="a", challenger="b")
    assert np.random.get_state()[1].tolist() == state


@pytest.mark.trap(51)
@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_an_impossible_duration_is_an_error_wherever_it_stands(seconds):
    for place in (0, 7, 11):
        durations = [1.0] * 12
        durations[place] = seconds
        with pytest.raises(InvalidMeasurement, match=f"it took {seconds} seconds"):
            compare(windows_of(durations, [1.0] * 12), baseline="a", challenger="b")


@pytest.mark.trap(51)
def test_a_nan_sample_never_reaches_a_statistic():
    with pytest.raises(InvalidMeasurement, match="NaN"):
        estimate(lambda resamples: np.nanmedian(resamples, axis=1), np.array([1.0] * 12 + [math.nan]))


@pytest.mark.trap(48)
def test_a_window_without_a_step_is_an_error():
    with pytest.raises(InvalidMeasurement, match="ran 0 steps"):
        compare(windows_of([1.0] * 12, [1.0] * 12, steps=0), baseline="a", challenger="b")


def test_too_few_pairs_or_a_missing_window_give_no_interval():
    with pytest.raises(InvalidMeasurement, match="11 pairs"):
        compare(windows_of([1.0] * 11, [1.0] * 11), baseline="a", challenger="b")
    with pytest.raises(InvalidMeasurement, match="11 windows and"):
        compare(windows_of([1.0] * 12, [1.0] * 12)[:-1], baseline="a", challenger="b")


def test_of_arms_started_several_times_only_the_middle_windows_of_each_start_make_a_pair():
    windows = [
        Window(arm=arm, steps=50, seconds=seconds, start=start)
        for start in range(12)
        for arm, middle in (("a", 2.0 + start), ("b", 1.0 + start / 2))
        for seconds in (9 * middle, middle, middle / 9)
    ]
    found = compare(windows, baseline="a", challenger="b")
    assert (found.speedup.ratio, found.speedup.low, found.speedup.high) == pytest.approx((2.0, 2.0, 2.0))
    assert [(first.seconds, first.start) for first, _ in found.pairs] == [(2.0 + start, start) for start in range(12)]
    assert found.windows == tuple(windows)


def test_few_pairs_are_told_with_students_interval():
    found = early_speedup((1.0, 1.1, 1.21))
    assert (found.ratio, found.pairs) == (pytest.approx(1.1), 3)
    student = 0.95 / math.sqrt(2 * 0.975 * 0.025)  # its 97.5 % quantile with two degrees of freedom, in closed form
    assert found.high == pytest.approx(1.1 * math.exp(student * math.log(1.1) / math.sqrt(3)))
    assert found.low == pytest.approx(1.1**2 / found.high)


@pytest.mark.trap(51)
@pytest.mark.parametrize("ratios", [(1.1,), (1.1, math.nan), (1.1, 0.0), (1.1, math.inf), (1.1, -1.0)])
def test_few_pairs_that_have_no_spread_or_are_impossible_are_refused(ratios: tuple[float, ...]):
    with pytest.raises(InvalidMeasurement):
        early_speedup(ratios)


# ── over processes ──────────────────────────────────────────────────────────────────────────────────────────────────

SURE = Speedup(ratio=1.5, low=1.49, high=1.51, pairs=12)


def test_starts_that_lie_apart_make_the_interval_wider_and_leave_the_ratio():
    found = over_processes(SURE, [1.4, 1.6, 1.45, 1.55], [1.0, 1.0, 1.0, 1.0])
    assert found.ratio == SURE.ratio
    assert found.low < 1.45
    assert found.high > 1.55


def test_equal_arms_that_lie_apart_make_it_wider_though_the_starts_agree():
    assert over_processes(SURE, [1.5, 1.5], [1.0, 1.0]) == SURE
    assert over_processes(SURE, [1.5, 1.5], [1.04, 0.96]).low < 1.45


@pytest.mark.parametrize("starts", [4])
def test_of_three_hundred_intervals_some_ninety_five_in_a_hundred_hold_the_truth(starts: int):
    """The truth is 1, and every process differs by 2 % for as long as it lives."""
    random.seed(0)

    def apart() -> list[float]:
        return [random.lognormvariate(0, 0.02) / random.lognormvariate(0, 0.02) for _ in range(starts)]

    held = 0
    for _ in range(300):
        ratios = apart()
        within = Speedup(ratio=median(ratios), low=median(ratios), high=median(ratios), pairs=12)
        found = over_processes(within, ratios, apart())
        held += found.low <= 1 <= found.high
    assert 280 <= held <= 296
