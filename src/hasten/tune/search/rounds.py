"""The rounds of a search: what joins the plan.

A round tries every choice that may gain, each one alone on top of the plan so far, most promising first. The fastest
value of every technique that was faster joins. The next round tries what the new choices can have reversed or made
possible, and what made no difference to a run that is much shorter now. A round that adds nothing is the last. A choice
with a large lead ends its round: on top of it all others take less time to try.

A choice that looked faster without significance joins as doubtful, as far as there is time for it, and the confirmation
decides. One that looks much faster and leaves all bits as they are joins with the next winner.

Numbers of one technique, such as microbatch sizes, are tried two at first, and further ones as long as each is better
than the one before. Compiling is tried last and by itself, and only for a run that is long enough to earn it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import Tried
from hasten.tune.search.bounds import is_counted
from hasten.tune.search.candidates import (
    AT_ONCE,
    EVALUATION_ALONE,
    UNPROVEN,
    Skipped,
    allowed,
    changes_training,
    first_values,
    joined,
    row_of,
    same,
    tried_again,
    why_not_compiled,
    with_choice,
    worth_trying,
)
from hasten.tune.search.objective import is_likely_gain, looks_faster, shows_now
from hasten.tune.search.plan_profile import PlanProfile
from hasten.tune.search.round_trials import RoundTrials, ratio_of
from hasten.tune.search.search_log import SearchLog
from hasten.tune.search.time_needed import arm_seconds
from hasten.tune.trials.trial_outcome import ArmFailed

COMPILE = "compile"
MOST_ROUNDS = 6
LOOKS_MUCH_FASTER = 1.1  # a ratio from which a choice that cannot harm joins at once
MOST_DOUBTFUL = 2  # every plan without some of these has an arm of its own in the confirmation

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """The choices of the plan so far. sure: those that were faster, in the order in which they joined; doubtful: those
    that only looked faster, to be measured again on top of them."""

    sure: tuple[Choice, ...] = ()
    doubtful: tuple[Choice, ...] = ()

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (*self.sure, *self.doubtful)

    def with_winners(self, winners: Sequence[Choice]) -> Joined:
        """A doubtful choice is dropped for a winner that conflicts with it."""
        sure = joined(self.sure, winners)
        kept = [choice for choice in self.doubtful if choice in joined(sure, [choice])]
        return Joined(sure=sure, doubtful=tuple(each for each in kept if not _has_technique(sure, each)))

    def with_doubtful(
        self, more: Sequence[Choice], has_time: Callable[[tuple[Choice, ...]], bool] = lambda doubtful: True
    ) -> Joined:
        """has_time: for these doubtful ones."""
        doubtful = self.doubtful
        for choice in more:
            before, whole = (*self.sure, *doubtful), (*doubtful, choice)
            legal = with_choice(before, choice) is not None and not _has_technique(before, choice)
            if legal and len(whole) <= MOST_DOUBTFUL and has_time(whole):
                doubtful = whole
        return Joined(sure=self.sure, doubtful=doubtful)

    def since(self, before: Joined) -> list[Choice]:
        """What joined after that."""
        return [each for each in self.choices if each not in before.choices]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A plan that others are tried on top of. profile: of the job under it; since: what joined it, or was removed from
    it, after the last round; None before the first one."""

    base: Joined
    profile: PlanProfile
    since: Sequence[Choice] | None = None


@dataclass(kw_only=True, slots=True)
class SearchRounds:
    """profile_of: profiles the job under a plan of these choices."""

    trials: RoundTrials
    profile_of: Callable[[Sequence[Choice]], PlanProfile]
    _late: list[Choice] = field(default_factory=list[Choice])  # that were faster, without time to prove them

    @property
    def log(self) -> SearchLog:
        return self.trials.log

    def run(self) -> Joined:
        """Raises ArmFailed when the baseline fails."""
        stages = [Stage(base=Joined(), profile=self.trials.baseline)]
        for _ in range(MOST_ROUNDS):
            results = self._on_what_runs(stages, self._round)
            base, profile = stages[-1].base, stages[-1].profile if len(stages) > 1 else self.trials.baseline
            winners = _winners([tried for tried in results if self.log.is_sound(tried.choice)])
            if not winners:
                break
            sure = self._with_winners(profile, base, winners, results)
            if sure == base:  # there is no time to prove any of them
                break
            whole = sure.with_doubtful(self._same_bits(results, profile))
            found, profile = self._profiled(base, sure, whole, profile)
            if found != sure:  # doubtful choices are removed first where the whole fails
                stages.append(Stage(base=sure, profile=profile, since=sure.since(base)))
            stages.append(Stage(base=found, profile=profile, since=found.since(base)))
        compiled = _winners(self._on_what_runs(stages, self._compiled))
        profile = stages[-1].profile
        base = self._with_late(profile, stages[-1].base.with_winners(compiled))

        def has_time(doubtful: tuple[Choice, ...]) -> bool:
            return self.trials.has_time_to_end(profile, base.sure, doubtful)

        return base.with_doubtful(self._looking_faster(self.log.tried, profile), has_time)

    def _on_what_runs(self, stages: list[Stage], find: Callable[[Stage], Answer]) -> Answer:
        """What is found on top of the last stage. A plan that fails there, as one can after more steps than it was
        profiled for, is given up with what joined it last, and the stage before it continues."""
        while True:
            try:
                return find(stages[-1])
            except ArmFailed as failure:
                if len(stages) == 1:
                    raise
                failed, before = stages.pop().base, stages[-1]
                newest = failed.since(before.base)
                self.log.add_failure(newest, failure)
                stages[-1] = replace(before, since=newest)

    def _with_winners(
        self, profile: PlanProfile, base: Joined, winners: Sequence[Choice], results: Sequence[Tried]
    ) -> Joined:
        """With those that there is time to prove and to confirm on top of the best one. An empty plan gets that one
        whatever the time."""
        first, *others = winners
        if first.technique not in EVALUATION_ALONE:
            best = next(ratio_of(tried) for tried in results if tried.choice is first)
            profile = replace(profile, step_seconds=profile.step_seconds / best)
        if base.choices:
            return self._with_others(profile, base, winners)
        return self._with_others(profile, base.with_winners([first]), others)

    def _with_others(self, profile: PlanProfile, base: Joined, others: Sequence[Choice]) -> Joined:
        for choice in others:
            more = base.with_winners([choice])
            if self.trials.has_time_to_end(profile, more.sure, more.doubtful):
                base = more
            elif not any(same(choice, late) for late in self._late):
                self._late.append(choice)
        return base

    def _with_late(self, profile: PlanProfile, base: Joined) -> Joined:
        """With those that there was no time to prove, where there is now; of all others that is the reason."""
        trials = [self.log.last_trial(choice) for choice in self._late]
        faster = [tried for tried in trials if tried is not None and tried.verdict == "faster"]
        faster = [tried for tried in faster if self.log.is_sound(tried.choice) and _was_tried_beside(tried, base)]
        self._late = []
        base = self._with_others(profile, base, [tried.choice for tried in faster])
        for tried in faster:
            if any(tried.choice is choice for choice in self._late):
                self.log.add(replace(tried, reason=f"{tried.reason}{UNPROVEN}"))
        return base

    def _profiled(self, base: Joined, sure: Joined, whole: Joined, profile: PlanProfile) -> tuple[Joined, PlanProfile]:
        """The whole with its profile, or what is sure of it, or the base and its own profile, where the others fail."""
        for plan in (whole, sure) if whole != sure else (sure,):
            try:
                return plan, self.profile_of(plan.choices)
            except ArmFailed as failure:
                if plan == sure:
                    self.log.add_failure(plan.since(base), failure)
        return base, profile

    def _looking_faster(self, results: Sequence[Tried], profile: PlanProfile) -> list[Choice]:
        """What looked faster when it was tried last, by the seconds that it seemed to save; and what made no
        significant difference, but treats a counted symptom."""
        last = [tried for tried in results if tried is self.log.last_trial(tried.choice)]
        last = [tried for tried in last if looks_faster(tried) or _treats_what_was_counted(tried, profile)]
        found = [tried.choice for tried in sorted(last, key=_saved_seconds, reverse=True)]
        return [choice for choice in found if self.log.is_sound(choice)]

    def _same_bits(self, results: Sequence[Tried], profile: PlanProfile) -> list[Choice]:
        """What looked much faster and had the baseline's bits, which costs no further proof."""
        much = [tried for tried in results if _looks_much_faster(tried) or _treats_what_was_counted(tried, profile)]
        return [choice for choice in self._looking_faster(much, profile) if choice.preserves is Preserves.BITS]

    def _round(self, stage: Stage) -> list[Tried]:
        profile, base = stage.profile, stage.base.choices
        candidates = [choice for choice in self._choices(stage) if choice.technique != COMPILE]
        first, waiting = first_values(candidates)
        results = self.trials.try_all(profile, base, first)
        while waiting and not self.trials.has_lead(results) and (onward := _next_values(waiting, results)):
            waiting = [choice for choice in waiting if choice not in onward]
            results += self.trials.try_all(profile, base, onward)
        if self.trials.has_lead(results):
            self.trials.note_inconclusive(results)
            return results
        reason = "its values before did not get better from one to the next"
        self.log.skip([Skipped(choice=choice, reason=reason) for choice in waiting], base)
        return results

    def _compiled(self, stage: Stage) -> list[Tried]:
        profile, base = stage.profile, stage.base.choices
        compiled = [choice for choice in self._choices(replace(stage, since=base)) if choice.technique == COMPILE]
        reason = why_not_compiled(profile.run_seconds)
        if reason is None:
            with self.log.on_top():
                return self.trials.try_all(profile, base, compiled, in_time=False)
        self.log.skip([Skipped(choice=choice, reason=reason) for choice in compiled], base)
        return []

    def _choices(self, stage: Stage) -> list[Choice]:
        profile, base = stage.profile, stage.base.choices
        only = self.log.options.only
        proposed = [choice for choice in profile.proposed if only is None or choice.technique in only]
        found, refused = allowed(proposed, self.log.options.ceiling)
        found = [each for each in found if not changes_training(each)]  # which target.py judges
        found = [each for each in found if with_choice(base, each) is not None and self._is_open(each, stage)]
        found, hopeless = worth_trying(found, profile.bounds(), profile.run_seconds, partial(arm_seconds, profile))
        self.log.skip(([*refused] if stage.since is None else []) + hopeless, base)
        return found

    def _was_lost(self, last: Tried, stage: Stage) -> bool:
        """Whether its result belonged to a plan that was given up, or it was faster and another one joined that was
        given up."""
        gave_up = not all(map(self.log.is_sound, stage.since or ()))
        return not all(map(self.log.is_sound, last.on)) or (gave_up and last.verdict == "faster")

    def _is_open(self, choice: Choice, stage: Stage) -> bool:
        """Whether it is tried in this round: for the first time, or because its result may be another one now."""
        if not self.log.is_sound(choice):
            return False
        if stage.since is None or tried_again(choice.technique, stage.since):
            return True
        base, seconds, inconclusive = stage.base.choices, stage.profile.run_seconds, self.trials.inconclusive
        if any(same(choice, each) for each in inconclusive) or self.log.remembered(choice, base) is not None:
            return True
        last = self.log.last_trial(choice)
        if last is not None:
            return shows_now(last, seconds) or self._was_lost(last, stage)
        row = [tried for tried in self.log.tried if tried.verdict != "skipped" and _in_a_row(tried.choice, choice)]
        if len(row) < AT_ONCE or row[-1].verdict == "faster":
            return True
        return any(shows_now(tried, seconds) for tried in row)


def _has_technique(choices: Sequence[Choice], one: Choice) -> bool:
    return any(one.technique == choice.technique for choice in choices)


def _winners(results: Sequence[Tried]) -> list[Choice]:
    """The fastest choice of every technique that was faster, the fastest technique first."""
    faster = sorted((tried for tried in results if tried.verdict == "faster"), key=ratio_of, reverse=True)
    best = dict[str, Choice]()
    for tried in faster:
        best.setdefault(tried.choice.technique, tried.choice)
    return list(best.values())


def _next_values(waiting: Sequence[Choice], results: Sequence[Tried]) -> list[Choice]:
    """The next value of every row whose last value was the best of its values so far."""
    onward = dict[str | None, Choice]()
    for choice in waiting:
        mine = [tried for tried in results if row_of(tried.choice) == row_of(choice)]
        if mine and mine[-1].verdict == "faster" and mine[-1] is max(mine, key=ratio_of):
            onward.setdefault(row_of(choice), choice)
    return list(onward.values())


def _looks_much_faster(tried: Tried) -> bool:
    """Not by chance alone: others are tried on top of what joins."""
    return tried.speedup is not None and tried.speedup.ratio >= LOOKS_MUCH_FASTER and is_likely_gain(tried.speedup)


def _treats_what_was_counted(tried: Tried, profile: PlanProfile) -> bool:
    """Whether it made no significant difference, and treats a counted symptom whose share would be seen."""
    return tried.verdict == "no difference" and is_counted(tried.choice, profile.bounds())


def _was_tried_beside(tried: Tried, base: Joined) -> bool:
    """Whether it was tried on top of the value of its technique that has joined, where one has."""
    rivals = [choice for choice in base.choices if choice.technique == tried.choice.technique]
    return all(any(same(rival, choice) for choice in tried.on) for rival in rivals)


def _in_a_row(one: Choice, other: Choice) -> bool:
    return row_of(one) is not None and row_of(one) == row_of(other)


def _saved_seconds(tried: Tried) -> float:
    """Of the planned run, as it seemed."""
    return tried.costs.total * (ratio_of(tried) - 1) if tried.costs is not None else 0.0
