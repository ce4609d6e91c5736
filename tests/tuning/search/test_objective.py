"""A plan is judged by the seconds to the end of the planned run, with all that is paid once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hasten.facts.choice import Choice
from hasten.facts.plan import Between, Speedup
from hasten.facts.trials import Costs, Tried
from hasten.measure.paired_timing import Window
from hasten.tuning.search.objective import (
    Interruptions,
    Measured,
    RunLength,
    break_even_step,
    by_start,
    costs,
    one_off,
    paired_totals,
    pooled,
    shows_now,
    speedup,
    totals,
)

RUN = RunLength(steps=100, epochs=5, evaluations=4)


def seen(seconds_per_step: float, *, arm: str = "plain", windows: int = 12, **rest: object) -> Measured:
    made = tuple(Window(arm=arm, steps=2, seconds=2 * seconds_per_step) for _ in range(windows))
    return Measured(windows=made, **{"one_off": 0.0, **rest})  # type: ignore[arg-type]


def test_the_total_is_all_steps_all_turns_but_the_first_all_evaluations_and_what_is_paid_once():
    arm = seen(0.5, one_off=7.0, turns=(0.25, 0.75, 0.5), evaluations=(2.0, 4.0))
    assert [window.seconds for window in totals(arm, RUN)][:2] == [
        7 + 100 * 0.5 + 4 * 0.5 + 4 * 2.0,
        7 + 100 * 0.5 + 4 * 0.5 + 4 * 4.0,
    ]
    assert costs(arm, RUN).total == pytest.approx(7 + 50 + 2 + 12)


def test_what_a_script_evaluates_within_an_epoch_counts_by_how_often_it_was_seen():
    length = RunLength(steps=100, epochs=1, evaluations=0)
    plain = seen(0.5, interruptions=Interruptions([2.0, 3.0], among=20))
    assert costs(plain, length).total == pytest.approx(50 + 100 * 5 / 20)


def test_plans_are_compared_by_interruptions_of_the_same_steps():
    length = RunLength(steps=100, epochs=1, evaluations=0)
    plain = seen(0.5, interruptions=Interruptions([2.0, 4.0, 2.0, 4.0, 2.0], among=50))
    planned = seen(0.5, arm="planned", interruptions=Interruptions([1.0, 2.0, 1.0, 2.0], among=49))  # a step less
    before, after = (sum(each.seconds for each in arm) / len(arm) for arm in paired_totals(plain, planned, length))
    assert (before, after) == pytest.approx((50 + 30, 50 + 15))
    assert speedup(plain, planned, length).low > 1


def test_a_single_interruption_is_no_gain():
    length = RunLength(steps=100, epochs=1, evaluations=0)
    plain = seen(0.5, interruptions=Interruptions([3.0], among=20))
    planned = seen(0.5, arm="planned", interruptions=Interruptions([0.5], among=20))
    assert speedup(plain, planned, length).ratio == 1
    never = seen(0.5, arm="planned")
    assert speedup(plain, never, length).ratio == 1


def test_an_arm_that_has_met_few_interruptions_has_those_of_the_profile():
    length = RunLength(steps=100, epochs=1, evaluations=0, interruptions=Interruptions([2.0, 2.0], among=40))
    assert costs(seen(0.5), length).total == pytest.approx(50 + 100 * 4 / 40)
    assert speedup(seen(0.5), seen(0.25, arm="planned"), length).ratio == pytest.approx(60 / 35)


def test_interruptions_that_vary_by_chance_widen_the_interval():
    length = RunLength(steps=100, epochs=1, evaluations=0)
    plain = seen(0.5, interruptions=Interruptions([9.0, 1.0, 2.0, 8.0, 3.0], among=50))
    planned = seen(0.5, arm="planned", interruptions=Interruptions([1.0, 7.0, 6.0, 2.0, 3.0], among=50))
    found = speedup(plain, planned, length)
    assert found.low < 1 < found.high


def test_a_script_takes_the_time_of_a_turn_behind_its_last_epoch_too():
    arm, length = seen(0.5, turns=(0.5,)), RunLength(steps=100, epochs=1, evaluations=0)
    assert costs(arm, length).total == pytest.approx(50)
    assert costs(arm, replace(length, ends_with_turn=True)).total == pytest.approx(50.5)


def test_two_plans_have_the_same_turns_where_those_of_one_were_not_measured():
    length = RunLength(steps=100, epochs=2, evaluations=0, turn_seconds=3.0)
    before, after = paired_totals(seen(0.5, turns=(9.0,)), seen(0.5, arm="planned"), length)
    assert {window.seconds for window in (*before, *after)} == {53.0}
    before, after = paired_totals(seen(0.5, turns=(9.0,)), seen(0.5, arm="planned", turns=(5.0,)), length)
    assert (before[0].seconds, after[0].seconds) == (59.0, 55.0)


@pytest.mark.parametrize("windows", [2, 3, 5, 8, 9, 12, 24, 50])
def test_of_ten_windows_eight_at_least_lie_within_the_spread(windows: int):
    order = sorted(range(windows), key=lambda number: number * 7 % windows)
    made = [Window(arm="plain", steps=1, seconds=1 + number / 100) for number in order]
    arm = Measured(windows=tuple(made), one_off=5.0)
    found = costs(arm, RunLength(steps=100, epochs=1, evaluations=0)).between
    assert found is not None
    inside = [each for each in totals(arm, RunLength(steps=100, epochs=1, evaluations=0)) if is_within(each, found)]
    assert 0.8 * windows <= len(inside)
    assert windows < 20 or len(inside) < windows


def is_within(window: Window, between: Between) -> bool:
    return between.low <= window.seconds <= between.high


def test_of_an_arm_that_was_seen_twice_the_seconds_are_those_of_all_windows():
    then, now = (costs(seen(each), RUN) for each in (2.0, 1.0))
    both = pooled(now, then)
    assert both.between == Between(low=now.total, high=then.total)
    assert (both.total, both.step) == ((now.total + then.total) / 2, (now.step + then.step) / 2)
    assert both.windows == now.windows + then.windows
    assert pooled(now, None) == now
    more = pooled(now, both)
    assert now.total < more.total < both.total


def test_a_machine_that_is_slow_in_a_third_of_the_windows_is_so_in_the_seconds_of_the_run():
    made = [Window(arm="plain", steps=1, seconds=1.5 if number % 3 == 0 else 1.0) for number in range(30)]
    found = costs(Measured(windows=tuple(made), one_off=0.0), RunLength(steps=100, epochs=1, evaluations=0))
    assert found.total == pytest.approx(100 * (17 * 1.0 + 7 * 1.5) / 24)  # without three at either end


def test_a_single_pause_is_not_in_the_seconds_of_the_run():
    made = [Window(arm="plain", steps=1, seconds=60.0 if number == 3 else 1.0) for number in range(12)]
    found = costs(Measured(windows=tuple(made), one_off=0.0), RunLength(steps=100, epochs=1, evaluations=0))
    assert found.total == pytest.approx(100)


def test_a_choice_that_makes_steps_faster_and_starts_slowly_loses_in_a_short_run():
    plain, compiled = seen(0.5), seen(0.25, arm="compiled", one_off=40.0)
    assert speedup(plain, compiled, RUN).high < 1
    assert speedup(plain, compiled, RunLength(steps=1000, epochs=5, evaluations=4)).low > 1


def test_every_start_says_how_much_faster_it_was_by_its_own_windows():
    def started(*seconds: float) -> Measured:
        made = (Window(arm="a", steps=1, seconds=each, start=number // 2) for number, each in enumerate(seconds))
        return Measured(windows=tuple(made), one_off=0.0)

    length = RunLength(steps=100, epochs=1, evaluations=0)
    assert by_start(started(2, 2, 3, 3, 4, 4), started(1, 1, 1, 1, 1, 1), length) == pytest.approx([2, 3, 4])
    assert by_start(started(2, 2, 3, 3, 4, 4), started(1, 1, 1), length) == pytest.approx([2, 3])  # it left early


@pytest.mark.parametrize(
    ("verdict", "ratio", "seconds", "shows"),
    [
        ("no difference", 1.008, 40.0, True),  # what was 0.8 % of a hundred seconds is 2 % of forty
        ("no difference", 1.008, 90.0, False),  # not much shorter than it was
        ("no difference", 1.002, 40.0, False),
        ("no difference", 0.9, 40.0, False),  # it seemed to cost something
        ("no difference", 2.0, 40.0, True),  # more than is left
        ("slower", 0.9, 40.0, False),
        ("faster", 1.2, 40.0, False),  # it has joined, or a better one has
    ],
)
def test_what_made_no_difference_may_make_one_once_the_run_is_much_shorter(
    verdict: str, ratio: float, seconds: float, shows: bool
):
    found = Speedup(ratio=ratio, low=ratio - 0.1, high=ratio + 0.1, pairs=12)
    took = Costs(one_off=0, step=1, turn=0, evaluation=0, total=100 / ratio, peak_bytes=0)
    threads = Choice(technique="threads", value=1)
    assert (
        shows_now(Tried(choice=threads, on=(), verdict=verdict, reason="", speedup=found, costs=took), seconds) is shows
    )


@pytest.mark.parametrize(
    ("plain", "planned", "alike"), [(0.0, 0.09, True), (0.0, 0.2, False), (4.0, 4.4, True), (4.0, 4.6, False)]
)
def test_starts_are_told_apart_by_what_starting_a_process_cannot_make_by_itself(
    plain: float, planned: float, alike: bool
):
    before, after = paired_totals(seen(1.0, one_off=plain), seen(1.0, arm="other", one_off=planned), RUN)
    assert (before[0].seconds == after[0].seconds) is alike


def cost(one_off: float, step: float) -> Costs:
    return Costs(one_off=one_off, step=step, turn=0, evaluation=0, total=one_off + 100 * step, peak_bytes=0)


@pytest.mark.parametrize(
    ("planned", "step"),
    [
        (cost(10, 0.25), 40),
        (cost(10, 0.375), 80),
        (cost(0, 0.25), 0),
        (cost(0, 0.75), 0),  # it costs nothing more at the start; that it never saves is not said by this number
        (cost(10, 0.5), None),
        (cost(10, 0.75), None),
    ],
)
def test_the_break_even_step_is_where_what_was_paid_is_saved(planned: Costs, step: int | None):
    assert break_even_step(cost(0, 0.5), planned) == step


def test_what_is_paid_once_is_the_build_the_first_batch_and_what_first_steps_take_beyond_their_time():
    assert one_off(3.0, 0.5, Window(arm="a", steps=2, seconds=20.0), 0.25) == 3.0 + 0.5 + 19.5
    assert one_off(3.0, None, Window(arm="a", steps=2, seconds=0.1), 0.25) == 3.0  # a lucky start saves nothing
