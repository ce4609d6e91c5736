"""Which checkpoints stay."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.errors import Misconfigured
from hasten.facts.saving import MOST_COST, Saving, retained, seconds_between


@dataclass(frozen=True)
class Found:
    """number: tells one from another of the same step."""

    number: int
    step: int
    best: bool


@st.composite
def folders(draw: st.DrawFn) -> list[Found]:
    """What is found, the newest first; a step may have been saved again."""
    steps = sorted(draw(st.lists(st.integers(0, 30), max_size=12)), reverse=True)
    return [Found(number, step, draw(st.booleans())) for number, step in enumerate(steps)]


savings = st.builds(
    Saving,
    keep_last=st.integers(2, 5),
    keep_best=st.booleans(),
    keep_every=st.none() | st.integers(1, 10),
)


@given(folders(), savings)
def test_what_stays_are_the_newest_the_newest_best_and_those_at_multiples_and_no_other(found, saving):
    best = [each for each in found if each.best][:1]
    due = {
        "newest": set(found[: saving.keep_last]),
        "best": set(best if saving.keep_best else []),
        "multiples": {each for each in found if saving.keep_every and each.step % saving.keep_every == 0},
    }
    stay = retained(found, saving)
    assert set(stay) == set.union(*due.values())
    assert [each.number for each in stay] == sorted(each.number for each in stay)  # in their order, none twice


@given(folders(), savings)
def test_to_choose_again_removes_no_more(found, saving):
    stay = retained(iter(found), saving)
    assert retained(stay, saving) == stay


@given(folders(), savings, st.booleans())
def test_of_two_there_is_always_an_older_one_beside_the_newest(found, saving, best):
    newest = Found(-1, 31, best)
    stay = retained([newest, *found], saving)
    assert stay[0] == newest
    assert len(stay) >= min(2, 1 + len(found))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keep_last", 1),
        ("keep_last", 0),
        ("keep_last", True),
        ("keep_last", 2.0),
        ("keep_every", 0),
        ("every_steps", 0),
        ("every_steps", "10"),
        ("every_seconds", -1),
        ("every_seconds", float("nan")),
        ("grace_seconds", True),
        ("grace_seconds", math.inf),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name_with_what_to_write(name, value):
    with pytest.raises(Misconfigured) as caught:
        Saving(**{name: value})
    assert caught.value.where == f"Saving.{name}"
    assert caught.value.fix.startswith("write ")


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_time_between_two_saves_is_what_was_asked_for_and_enough_that_saving_costs_little(asked, cost):
    seconds = seconds_between(Saving(every_seconds=asked), cost)
    assert seconds >= asked
    assert cost <= seconds * MOST_COST * (1 + 1e-9)
    assert seconds in (asked, cost / MOST_COST)
