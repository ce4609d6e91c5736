"""Choices that exclude each other are refused with one sentence for each pair."""

from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.facts.choice import Choice, Preserves
from hasten.techniques.combinations import TABLE, Illegal, conflicts


def chosen(technique, value=True):
    return Choice(technique=technique, value=value, preserves=Preserves.BITS)


SOME_VALUES = (
    Illegal(first="a", first_values=("x",), second="b", second_values=(1, 2), reason="x needs neither 1 nor 2"),
)


def test_two_ways_to_split_a_batch_exclude_each_other():
    (found,) = conflicts([chosen("microbatch", 4), chosen("precision", "bf16"), chosen("accumulation", 2)])
    assert found.choices == (chosen("microbatch", 4), chosen("accumulation", 2))
    assert found.reason == (
        "microbatch = 4 and accumulation = 2 exclude each other: "
        "both say how many samples one forward and backward pass takes"
    )


def test_a_technique_chosen_twice_is_named_with_both_values():
    (found,) = conflicts([chosen("threads", 2), chosen("precision", "bf16"), chosen("threads", 4)])
    assert found.choices == (chosen("threads", 2), chosen("threads", 4))
    assert found.reason == "threads is chosen 2 times (2, 4); only one value can hold"


def test_choices_that_go_together_have_no_conflict():
    assert conflicts([]) == []
    assert conflicts([chosen("precision", "fp16"), chosen("fused_optimizer", "fused"), chosen("accumulation", 2)]) == []


@pytest.mark.parametrize(("value", "other", "found"), [("x", 1, 1), ("x", 2, 1), ("x", 3, 0), ("y", 1, 0)])
def test_a_row_with_values_forbids_those_alone(value, other, found):
    assert len(conflicts([chosen("a", value), chosen("b", other)], SOME_VALUES)) == found


@given(
    st.permutations([chosen("microbatch", 4), chosen("accumulation", 2), chosen("threads", 1), chosen("threads", 2)])
)
def test_the_order_of_the_plan_does_not_matter(choices):
    assert len(conflicts(choices)) == 2


@pytest.mark.parametrize("name", sorted({name for row in TABLE for name in (row.first, row.second)}))
def test_every_row_names_techniques_that_exist(name):
    assert find_spec(f"hasten.techniques.{name}") is not None
