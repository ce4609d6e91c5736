"""When a whole plan counts as proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.facts.choice import Choice
from hasten.facts.plan import Speedup
from hasten.facts.trials import Confirmed, Costs, is_proven
from hasten.tuning.search.comparison import ComparisonSettings
from hasten.tuning.search.confirmation import confirm
from hasten.tuning.search.objective import RunLength
from hasten.tuning.trials.arms import Arms

COSTS = Costs(one_off=0, step=1, turn=0, evaluation=0, total=100, peak_bytes=0)


JOBS = Path(__file__).parents[1] / "jobs" / "clocked_jobs.py"


def arms(function: str = "job") -> Arms:
    return Arms(f"{JOBS}:{function}")


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


@pytest.mark.proof
def test_two_choices_of_which_either_is_enough_stay_where_nothing_is_proven_without_both():
    told, length = list[Confirmed](), RunLength(steps=100, epochs=1, evaluations=0)
    choices = (HALF, Choice(technique="precision", value="bf16"))
    final = confirm(
        arms("halved_by_either"),
        choices,
        ComparisonSettings(steps=2),
        length,
        lambda *_: None,
        told.append,
        room=10,
    )
    assert final.confirmed.choices == choices
    assert [each.kept for each in final.confirmed.earned] == [True, True]
    assert told == [final.confirmed]


HALF, THREADS = Choice(technique="microbatch", value=4), Choice(technique="threads", value=2)


@pytest.mark.proof
@pytest.mark.parametrize("room", [1, 3, 10])
def test_a_choice_that_earns_nothing_goes_however_many_arms_fit_into_memory(room: int):
    told: list[Confirmed] = []
    length = RunLength(steps=100, epochs=1, evaluations=0)
    settings = ComparisonSettings(steps=2, checks=())
    final = confirm(arms(), (HALF, THREADS), settings, length, lambda *_: None, told.append, room=room)
    assert final.confirmed.choices == (HALF,)
    assert final.confirmed.speedup.ratio == pytest.approx(2, rel=0.05)
    assert [each.choice for each in final.confirmed.earned] == [HALF]
    assert told[-1] == final.confirmed


@pytest.mark.proof
def test_where_there_is_no_time_to_measure_again_one_idle_choice_goes_and_the_others_stay():
    told, length = list[Confirmed](), RunLength(steps=100, epochs=1, evaluations=0)
    choices = (HALF, THREADS, Choice(technique="flush_denormals", value=True))
    settings = ComparisonSettings(steps=2, checks=())
    final = confirm(arms(), choices, settings, length, lambda *_: None, told.append, room=10, again=lambda left: None)
    assert final.confirmed.choices in (choices[:2], choices[::2])
    assert final.confirmed.speedup.ratio == pytest.approx(2, rel=0.05)
    assert all(each.kept for each in final.confirmed.earned)
    assert told == [final.confirmed]
