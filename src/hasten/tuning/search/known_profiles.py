"""The profiles of a search: of the baseline, and of the plans that others are tried on top of.

A plan on top of which there is no time to try anything is not profiled. Its steps are then expected to be faster than
those of the nearest profiled plan by what the trials of its choices have shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hasten.facts.choice import Choice
from hasten.tuning.search.candidates import EVALUATION_ALONE
from hasten.tuning.search.expected_seconds import end_seconds
from hasten.tuning.search.plan_profile import PlanProfile
from hasten.tuning.search.search_log import SearchLog, ratio_of

PROFILED_STEPS = 8  # of a plan with long steps


@dataclass(kw_only=True, slots=True)
class KnownProfiles:
    """new_profile: (choices, profile of the baseline, None for that itself) -> measures it."""

    log: SearchLog
    new_profile: Callable[[Sequence[Choice], PlanProfile | None], PlanProfile]
    _measured: dict[frozenset[str], PlanProfile] = field(default_factory=dict[frozenset[str], PlanProfile])
    _expected: dict[frozenset[str], PlanProfile] = field(default_factory=dict[frozenset[str], PlanProfile])

    def of(self, base: Sequence[Choice]) -> PlanProfile:
        """Of the job under a plan of these choices, once for each plan. Raises as plan_profile.profile_plan."""
        names, baseline = _names(base), self._measured.get(frozenset())
        if baseline is not None and names not in self._measured and names not in self._expected:
            expected = self._by_trials(base)
            if end_seconds(baseline, expected, base, self.log.options.seconds) >= self.log.seconds_left:
                self._expected[names] = expected
        return self._expected[names] if names in self._expected else self.measured(base)

    def measured(self, base: Sequence[Choice]) -> PlanProfile:
        """Whatever the time."""
        names = _names(base)
        if names not in self._measured:
            self._measured[names] = self.new_profile(base, self._measured.get(frozenset()))
        return self._measured[names]

    def seconds_to_measure(self, base: Sequence[Choice], baseline: PlanProfile) -> float:
        """0 where it is measured."""
        if _names(base) in self._measured:
            return 0.0
        nearest = self.nearest(base, baseline)
        return nearest.start_seconds + PROFILED_STEPS * nearest.elapsed_seconds + nearest.length.turn_seconds

    def nearest(self, base: Sequence[Choice], baseline: PlanProfile) -> PlanProfile:
        """Of the plan that has most of these choices and no others. baseline: its profile by now."""
        nearest = self._nearest_names(base)
        return self._known[nearest] if nearest else baseline

    def _by_trials(self, base: Sequence[Choice]) -> PlanProfile:
        nearest = self._nearest_names(base)
        added = [each for each in base if repr(each) not in nearest and each.technique not in EVALUATION_ALONE]
        gain = math.prod(ratio_of(tried) for tried in map(self.log.last_trial, added) if tried and tried.speedup)
        return replace(self._known[nearest], step_seconds=self._known[nearest].step_seconds / gain)

    @property
    def _known(self) -> dict[frozenset[str], PlanProfile]:
        return self._expected | self._measured

    def _nearest_names(self, base: Sequence[Choice]) -> frozenset[str]:
        return max((names for names in self._known if names <= _names(base)), key=len)


def _names(base: Sequence[Choice]) -> frozenset[str]:
    return frozenset(map(repr, base))
