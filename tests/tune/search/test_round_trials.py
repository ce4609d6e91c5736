"""What the trials of a round are told as, and what of them another search asks again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Between
from hasten.facts.trials import Costs, Doing, Noise, Plain, Record, Tried
from hasten.tune.search.plan_profile import PlanProfile, profile_plan
from hasten.tune.search.round_trials import RoundTrials
from hasten.tune.search.search_log import Options, SearchLog
from hasten.tune.trials.arms import Arms

JOB = f"{Path(__file__).parents[1] / 'jobs' / 'clocked_jobs.py'}:job"
FLUSH = Choice(technique="flush_denormals", value=True, preserves=Preserves.ROUNDING)
SLOWER = Choice(technique="threads", value=1, preserves=Preserves.ROUNDING)
ALLOCATOR = Choice(technique="allocator", value="keep_freed_memory", preserves=Preserves.BITS)


@pytest.fixture(scope="module")
def profile() -> PlanProfile:
    arms = Arms(JOB)
    return profile_plan(arms, JOB, Preserves.STATISTICS)


def tried(profile: PlanProfile, *choices: Choice, on: tuple[Choice, ...] = (), first: bool = True) -> list[Record]:
    """The records of one comparison, of which the first pass takes all the time that the search has.

    first: whether it is the search's first one.
    """

    def tell(doing: Doing) -> None:
        log.began -= 10_000

    kept = list[Record]()
    log = SearchLog(options=Options(seconds=5_000), keep=kept.append, report=tell, comparisons=0 if first else 1)
    arms = Arms(JOB)
    RoundTrials(arms=arms, log=log, baseline=profile).try_all(profile, on, choices)
    return kept


@pytest.mark.proof
@pytest.mark.parametrize(
    ("choice", "verdict", "cut_short"), [(FLUSH, "no difference", True), (SLOWER, "slower", False)], ids=str
)
def test_what_had_to_leave_for_want_of_time_says_so_and_what_was_known_does_not(
    choice: Choice, verdict: str, cut_short: bool, profile: PlanProfile, tmp_path, monkeypatch
):
    monkeypatch.setenv("HASTEN_TEST_NOISE", "0.05")
    monkeypatch.setenv("HASTEN_TEST_SEED", "2")
    monkeypatch.setenv("HASTEN_TEST_PROCESSES", str(tmp_path))
    [told] = [each for each in tried(profile, choice, first=False) if isinstance(each, Tried)]
    assert (told.verdict, told.cut_short) == (verdict, cut_short)
    assert told.speedup is not None
    assert told.speedup.pairs < 12


@pytest.mark.proof
def test_the_most_promising_choice_of_the_first_comparison_is_asked_to_its_end_whatever_the_time(
    profile: PlanProfile, tmp_path, monkeypatch
):
    monkeypatch.setenv("HASTEN_TEST_NOISE", "0.05")
    monkeypatch.setenv("HASTEN_TEST_SEED", "2")
    monkeypatch.setenv("HASTEN_TEST_PROCESSES", str(tmp_path))
    told = {str(each.choice): each for each in tried(profile, FLUSH, ALLOCATOR) if isinstance(each, Tried)}
    assert not told[str(FLUSH)].cut_short
    assert told[str(ALLOCATOR)].cut_short


@pytest.mark.proof
def test_the_plain_job_is_kept_with_its_spread_and_its_noise_and_so_is_no_plan_that_others_are_tried_on(
    profile: PlanProfile,
):
    before = Costs(one_off=0, step=1, turn=0, evaluation=0, total=1, peak_bytes=0, between=Between(low=0, high=9e9))
    kept = tried(replace(profile, costs=before), FLUSH)
    [now] = [each.costs for each in kept if isinstance(each, Plain)]
    assert now.between == before.between
    assert now.total not in (0, before.total)
    assert [each for each in kept if isinstance(each, Noise)]
    assert not [each for each in tried(profile, FLUSH, on=(SLOWER,)) if isinstance(each, Plain | Noise)]
