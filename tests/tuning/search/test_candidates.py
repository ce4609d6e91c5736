"""What a search tries, in which order, and what it leaves out with which reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.facts.choice import Choice, Preserves
from hasten.scripts.techniques import OF_SCRIPTS
from hasten.techniques import ALL
from hasten.techniques.combinations import conflicts
from hasten.tuning.search.candidates import (
    INTERACTIONS,
    MEMORY_ALONE,
    ONE_OF,
    allowed,
    first_values,
    joined,
    without,
)

NAMES = {technique.name for technique in (*ALL, *OF_SCRIPTS)}


def choice(technique: str, value: object = True, preserves: Preserves | None = Preserves.BITS) -> Choice:
    return Choice(technique=technique, value=value, preserves=preserves)  # type: ignore[arg-type]


def test_every_name_in_a_table_is_a_techniques():
    named = {*INTERACTIONS, *(other for others in INTERACTIONS.values() for other in others)}
    assert named | MEMORY_ALONE | {*ONE_OF, *ONE_OF.values()} <= NAMES


@pytest.mark.parametrize("ceiling", Preserves)
def test_nothing_looser_than_the_ceiling_is_tried_and_whatever_is_left_out_has_a_reason(ceiling: Preserves):
    proposed = [choice(f"of class {claim}", preserves=claim) for claim in Preserves]
    found, left = allowed(proposed, ceiling)
    assert found == [each for each in proposed if each.preserves is not None and each.preserves <= ceiling]
    assert len(found) + len(left) == len(proposed)
    assert all(reason for _, reason in left)


def test_a_choice_of_which_nobody_says_what_it_preserves_counts_as_changing_training():
    found, left = allowed([choice("anything", preserves=None)], Preserves.STATISTICS)
    assert not found
    assert "changes training" in left[0][1]


def test_two_techniques_that_say_the_same_are_tried_once():
    found, left = allowed([choice("accumulation", 2), choice("microbatch", 32)], Preserves.STATISTICS)
    assert [each.technique for each in found] == ["microbatch"]
    assert [each.technique for each, _ in left] == ["accumulation"]
    assert allowed([choice("accumulation", 2)], Preserves.STATISTICS)[0]


def test_values_lie_in_a_row_only_with_the_same_options_and_only_where_they_are_numbers():
    def workers(count: int, kind: str) -> Choice:
        return Choice(technique="loader_workers", value=count, preserves=Preserves.BITS, options={"kind": kind})

    proposed = [workers(2, "threads"), workers(1, "threads"), *(workers(count, "processes") for count in (2, 1, 4))]
    words = [choice("precision", word) for word in ("bf16", "tf32", "fp16")]
    assert first_values([*proposed, *words]) == ([*proposed[:4], *words], proposed[4:])


def test_without_its_workers_a_plan_has_nothing_that_needs_them():
    workers, threads = choice("loader_workers", 2), choice("threads", 1)
    base = (workers, choice("prefetch", 4), threads, choice("persistent_workers"))
    assert without(base, workers) == (threads,)
    assert without(base, threads) == tuple(each for each in base if each is not threads)
    assert without(base, threads, workers) == ()


TECHNIQUES = st.sampled_from(
    ["loader_workers", "prefetch", "persistent_workers", "microbatch", "accumulation", "threads"]
)
CHOICES = st.builds(choice, TECHNIQUES, st.integers(0, 3))


@given(st.lists(CHOICES), st.lists(CHOICES))
def test_whatever_wins_the_joined_plan_is_legal_and_holds_no_technique_twice(first: list[Choice], then: list[Choice]):
    found = joined(joined((), first), then)
    assert not conflicts(found)
    assert len({each.technique for each in found}) == len(found)
