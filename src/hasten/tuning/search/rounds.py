"""The rounds of a search: what joins the plan.

A round tries every choice that may gain, each one alone on top of the plan so far. The fastest value of every technique
that was faster joins. The next round tries what the new choices can have reversed or made possible, what ended before
its result was known, and what made no difference to a run that is much shorter now. A round that adds nothing is the
last. What looked faster without significance joins at the end: the confirmation decides.

Numbers of one technique, such as microbatch sizes, are tried two at first, and further ones as long as each is better
than the one before. Compiling is tried last, and only for a run that is long enough to earn it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hasten.facts.choice import Choice
from hasten.facts.trials import Tried
from hasten.tuning.search.bounds import is_counted
from hasten.tuning.search.candidates import (
    AT_ONCE,
    EVALUATION_ALONE,
    OUT_OF_TIME,
    UNPROVEN,
    allowed,
    changes_training,
    first_values,
    joined,
    row_of,
    tried_again,
    why_not_compiled,
    with_choice,
    worth_trying,
)
from hasten.tuning.search.objective import looks_faster, shows_now
from hasten.tuning.search.plan_profile import PlanProfile
from hasten.tuning.search.round_trials import RoundTrials
from hasten.tuning.search.search_log import SearchLog, ratio_of
from hasten.tuning.trials.trial_outcome import ArmFailed

COMPILE = "compile"
MOST_ROUNDS = 6
MOST_UNSURE = 2  # choices that only looked faster
NOT_FASTER = "the values that were tried before it did not get faster from one to the next"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A plan that others are tried on top of. profile: of the job under it; since: what joined it in the last round;
    None before the first one."""

    base: tuple[Choice, ...]
    profile: PlanProfile
    since: Sequence[Choice] | None = None


@dataclass(kw_only=True, slots=True)
class SearchRounds:
    """profile_of: profiles the job under a plan of these choices."""

    trials: RoundTrials
    profile_of: Callable[[Sequence[Choice]], PlanProfile]

    @property
    def log(self) -> SearchLog:
        return self.trials.log

    def run(self) -> tuple[Choice, ...]:
        """The choices of the plan, in the order in which they joined. A plan that fails when others are tried on it, as
        one can after more steps than it was profiled for, ends the rounds with the plan before it. Raises ArmFailed
        when the baseline fails."""
        before = stage = Stage(base=(), profile=self.trials.baseline)
        try:
            for _ in range(MOST_ROUNDS):
                base, profile = stage.base, stage.profile if stage.base else self.trials.baseline
                winners = self.log.winners(self._round(stage))
                whole = self._with_winners(profile, base, winners)
                if whole == base:
                    break
                since = _others(whole, base)
                try:
                    before, stage = stage, Stage(base=whole, profile=self.profile_of(whole), since=since)
                except ArmFailed as failure:
                    self.log.add_failure(since, failure)
                    break
            whole = joined(stage.base, self.log.winners(self._compiled(stage)))
        except ArmFailed as failure:
            if not stage.base:
                raise
            self.log.add_failure(_others(stage.base, before.base), failure)
            stage, whole = before, before.base
        return self._with_unsure(stage.profile, whole)

    def _with_winners(
        self, profile: PlanProfile, base: tuple[Choice, ...], winners: Sequence[Choice]
    ) -> tuple[Choice, ...]:
        """With those that there is time to prove and to confirm on top of the best one. An empty plan gets that one
        whatever the time."""
        for choice in winners:
            more, tried = joined(base, [choice]), self.log.last_trial(choice)
            assert tried is not None
            if choice is winners[0] and choice.technique not in EVALUATION_ALONE:
                profile = replace(profile, step_seconds=profile.step_seconds / ratio_of(tried))
            if not base or self.trials.ends_soon_enough(profile, more):
                base = more
            else:
                self.log.add(replace(tried, reason=f"{tried.reason}{UNPROVEN}"))
        return base

    def _with_unsure(self, profile: PlanProfile, sure: tuple[Choice, ...]) -> tuple[Choice, ...]:
        whole = sure
        for choice in self._looking_faster(profile):
            legal = with_choice(whole, choice) is not None
            legal &= all(choice.technique != each.technique for each in whole)
            room = len(whole) < len(sure) + MOST_UNSURE
            if legal and room and self.trials.has_time_to_end(profile, (*whole, choice)):
                whole = (*whole, choice)
        return whole

    def _looking_faster(self, profile: PlanProfile) -> list[Choice]:
        """What looked faster when it was tried last, by the seconds that it seemed to save; and what made no
        significant difference, but treats a counted symptom."""
        bounds = profile.bounds()
        last = [tried for tried in self.log.tried if tried is self.log.last_trial(tried.choice)]
        last = [
            tried
            for tried in last
            if looks_faster(tried) or (tried.verdict == "no difference" and is_counted(tried.choice, bounds))
        ]
        found = [tried.choice for tried in sorted(last, key=_saved_seconds, reverse=True)]
        return [choice for choice in found if self.log.is_sound(choice)]

    def _round(self, stage: Stage) -> list[Tried]:
        candidates = [choice for choice in self._choices(stage) if choice.technique != COMPILE]
        first, waiting = first_values(candidates)
        results = self.trials.try_all(stage.profile, stage.base, first)
        while waiting and not self.trials.has_lead(results) and (onward := _next_values(waiting, results)):
            waiting = [choice for choice in waiting if choice not in onward]
            results += self.trials.try_all(stage.profile, stage.base, onward)
        if not self.trials.has_lead(results):
            rows = {row_of(tried.choice) for tried in results}
            reasons = [(choice, NOT_FASTER if row_of(choice) in rows else OUT_OF_TIME) for choice in waiting]
            self.log.skip(reasons, stage.base)
        return results

    def _compiled(self, stage: Stage) -> list[Tried]:
        compiled = [choice for choice in self._choices(replace(stage, since=stage.base)) if choice.technique == COMPILE]
        reason = why_not_compiled(stage.profile.run_seconds, stage.base)
        if reason is None:
            with self.log.on_top():
                return self.trials.try_all(stage.profile, stage.base, compiled, in_time=False)
        self.log.skip([(choice, reason) for choice in compiled], stage.base)
        return []

    def _choices(self, stage: Stage) -> list[Choice]:
        profile, only = stage.profile, self.log.options.only
        proposed = [choice for choice in profile.proposed if only is None or choice.technique in only]
        found, refused = allowed(proposed, self.log.options.ceiling)
        found = [each for each in found if not changes_training(each)]  # which target.py judges
        found = [each for each in found if with_choice(stage.base, each) is not None and self._is_open(each, stage)]
        found, hopeless = worth_trying(found, profile.bounds())
        self.log.skip(([*refused] if stage.since is None else []) + hopeless, stage.base)
        return found

    def _is_open(self, choice: Choice, stage: Stage) -> bool:
        """Whether it is tried in this round: for the first time, or because its result may be another one now."""
        if not self.log.is_sound(choice):
            return False
        if stage.since is None or tried_again(choice.technique, stage.since):
            return True
        if self.log.remembered(choice, stage.base) is not None:
            return True
        seconds, last = stage.profile.run_seconds, self.log.last_trial(choice)
        if last is not None:
            return last.cut_short or shows_now(last, seconds)
        mine = row_of(choice)
        row = [tried for tried in self.log.tried if tried.verdict != "skipped" and row_of(tried.choice) == mine]
        if mine is None or len(row) < AT_ONCE or row[-1].verdict == "faster":
            return True
        return any(shows_now(tried, seconds) for tried in row)


def _others(choices: Sequence[Choice], some: Sequence[Choice]) -> list[Choice]:
    return [choice for choice in choices if choice not in some]


def _next_values(waiting: Sequence[Choice], results: Sequence[Tried]) -> list[Choice]:
    """The next value of every row whose last value was the best of its values so far."""
    onward = dict[str | None, Choice]()
    for choice in waiting:
        mine = [tried for tried in results if row_of(tried.choice) == row_of(choice)]
        if mine and mine[-1].verdict == "faster" and mine[-1] is max(mine, key=ratio_of):
            onward.setdefault(row_of(choice), choice)
    return list(onward.values())


def _saved_seconds(tried: Tried) -> float:
    """Of the planned run, as it seemed."""
    return tried.costs.total * (ratio_of(tried) - 1) if tried.costs is not None else 0.0
