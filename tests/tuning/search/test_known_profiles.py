"""The profiles of plans: measured where there is time to use them, and else expected by trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hasten.facts.choice import Choice
from hasten.tuning.search.expected_seconds import end_seconds
from hasten.tuning.search.known_profiles import KnownProfiles
from hasten.tuning.search.plan_profile import PlanProfile
from hasten.tuning.search.search_log import Options, SearchLog
from tuning.search.test_rounds import BF16, FUSED, profile, tried

BASELINE, MEASURED = profile(), profile(step_seconds=0.03)


def known(seconds: float) -> KnownProfiles:
    """After the baseline was profiled and two choices were faster, with so many seconds left."""

    def new_profile(base: Sequence[Choice], baseline: PlanProfile | None) -> PlanProfile:
        return MEASURED if base else BASELINE

    log = SearchLog(options=Options(seconds=seconds), keep=lambda record: None, report=lambda doing: None)
    profiles = KnownProfiles(log=log, new_profile=new_profile)
    assert profiles.of(()) is BASELINE
    log.tried += [tried(BF16, 2.0), tried(FUSED, 1.25, on=(BF16,))]
    return profiles


def test_a_plan_is_profiled_where_there_is_time_to_try_anything_on_top_of_it():
    profiles = known(1_000.0)
    assert profiles.of((BF16,)) is MEASURED
    assert profiles.seconds_to_measure((BF16,), BASELINE) == 0.0
    assert profiles.nearest((BF16, FUSED), BASELINE) is MEASURED


def test_a_plan_that_could_not_even_be_proven_in_time_is_expected_to_be_as_fast_as_its_trials_were():
    profiles = known(1.0)
    both = (BF16, FUSED)
    assert profiles.of((BF16,)).step_seconds == pytest.approx(BASELINE.step_seconds / 2)
    assert profiles.of(both).step_seconds == pytest.approx(BASELINE.step_seconds / 2.5)
    assert profiles.nearest(both, BASELINE) == profiles.of(both)
    assert profiles.seconds_to_measure(both, BASELINE) > BASELINE.start_seconds
    assert profiles.measured(both) is MEASURED
    assert profiles.of(()) is BASELINE


def test_the_time_that_a_plan_needs_is_that_of_its_own_steps():
    """Of the baseline's steps it would have been too late."""
    expected = replace(BASELINE, step_seconds=BASELINE.step_seconds / 2)
    needed = [end_seconds(BASELINE, each, (BF16,), 60.0) for each in (expected, BASELINE)]
    assert needed[0] < needed[1]
    assert known(sum(needed) / 2).of((BF16,)) is MEASURED
