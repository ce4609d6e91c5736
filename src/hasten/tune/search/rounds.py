"""Waves of heats: what joins the plan, one choice at a time.

A wave tries every choice that may gain, each one alone on top of the plan so far, most promising first. The fastest
value of every technique that was faster joins. The next wave tries on top of that what the change can have turned
round, what it has made possible (once a loader is fast, a fast model shows), and what made no difference to a run that
is much shorter now. A wave that adds nothing is the last. One in which a choice has a large lead ends there: on top of
it all others take less time to try, and what they save is a larger share.

What looked faster and was not surely so is not lost. As far as there is time for it, it goes with the plan into the
last heat as doubtful, and stays where the plan without it is slower again (final.py). If it looks much faster and
leaves all bits as they are, it joins with the next winner, so that others are tried on top of it as well.

Values of one technique that lie in a row, such as sizes of a microbatch, are tried two at first, and further ones only
as long as each is better than the one before. Compiling is tried last, on top of all that joined, and by itself: one
trial takes longer than all others, and only a run that is long enough to earn it is put to it.
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
    Left,
    allowed,
    changes_training,
    first_values,
    row_of,
    same,
    tried_again,
    why_not_compiled,
    with_choice,
    worth_trying,
)
from hasten.tune.search.joined import Joined
from hasten.tune.search.needed import arm_seconds
from hasten.tune.search.objective import is_likely_gain, looks_faster, shows_now
from hasten.tune.search.plan_profile import Look
from hasten.tune.search.round_trials import Heats
from hasten.tune.search.search_log import Ledger
from hasten.tune.trials.trial_outcome import ArmFailed

COMPILE = "compile"
MOST_WAVES = 6
LOOKS_MUCH_FASTER = 1.1  # what looks to be worth so much joins at once, if it can do no harm

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A plan that others are tried on top of. look: at the job under it; since: what joined it, or has left it again,
    after the last wave; None before the first one."""

    base: Joined
    look: Look
    since: Sequence[Choice] | None = None


@dataclass(kw_only=True, slots=True)
class Waves:
    """look_at: a look at the job under a plan of these choices."""

    heats: Heats
    look_at: Callable[[Sequence[Choice]], Look]
    _late: list[Choice] = field(default_factory=list[Choice])  # that were faster, without time to prove them

    @property
    def ledger(self) -> Ledger:
        return self.heats.ledger

    def run(self) -> Joined:
        """Raises ArmFailed when the plain job fails."""
        stages = [Stage(base=Joined(), look=self.heats.plain)]
        for _ in range(MOST_WAVES):
            results = self._on_what_runs(stages, self._wave)
            base, look = stages[-1].base, stages[-1].look if len(stages) > 1 else self.heats.plain
            winners = _winners([tried for tried in results if self.ledger.is_sound(tried.choice)])
            if not winners:
                break
            sure = self._with_winners(look, base, winners, results)
            if sure == base:  # there is no time to prove any of them
                break
            joined, look = self._looked_at(base, sure, sure.with_doubtful(self._same_bits(results, look)), look)
            if joined != sure:  # what is doubtful goes first where the whole fails
                stages.append(Stage(base=sure, look=look, since=_joined_since(base, sure)))
            stages.append(Stage(base=joined, look=look, since=_joined_since(base, joined)))
        compiled = _winners(self._on_what_runs(stages, self._compiled))
        look = stages[-1].look
        base = self._with_late(look, stages[-1].base.with_winners(compiled))

        def has_time(doubtful: tuple[Choice, ...]) -> bool:
            return self.heats.has_time_to_end(look, base.sure, doubtful)

        return base.with_doubtful(self._looking_faster(self.ledger.tried, look), has_time)

    def _on_what_runs(self, stages: list[Stage], find: Callable[[Stage], Answer]) -> Answer:
        """What is found on top of the last stage. A plan that fails there, as one can after more steps than it was
        looked at for, is given up with what joined it last, and the stage before it goes on."""
        while True:
            try:
                return find(stages[-1])
            except ArmFailed as failure:
                if len(stages) == 1:
                    raise
                failed, before = stages.pop().base, stages[-1]
                newest = _joined_since(before.base, failed)
                self.ledger.note_failure(newest, failure)
                stages[-1] = replace(before, since=newest)

    def _with_winners(self, look: Look, base: Joined, winners: Sequence[Choice], results: Sequence[Tried]) -> Joined:
        """With those that there is time to prove and to confirm on top of the best one. A plan that has nothing gets
        that one whatever time there is."""
        first, *others = winners
        if first.technique not in EVALUATION_ALONE:
            best = next(_ratio(tried) for tried in results if tried.choice is first)
            look = replace(look, step_seconds=look.step_seconds / best)
        if base.choices:
            return self._with_others(look, base, winners)
        return self._with_others(look, base.with_winners([first]), others)

    def _with_others(self, look: Look, base: Joined, others: Sequence[Choice]) -> Joined:
        for choice in others:
            more = base.with_winners([choice])
            if self.heats.has_time_to_end(look, more.sure, more.doubtful):
                base = more
            elif not any(same(choice, late) for late in self._late):
                self._late.append(choice)
        return base

    def _with_late(self, look: Look, base: Joined) -> Joined:
        """With those that there was no time to prove, where there is now; of all others it is told."""
        trials = [self.ledger.last_trial(choice) for choice in self._late]
        faster = [tried for tried in trials if tried is not None and tried.verdict == "faster"]
        faster = [tried for tried in faster if self.ledger.is_sound(tried.choice) and _was_tried_beside(tried, base)]
        self._late = []
        base = self._with_others(look, base, [tried.choice for tried in faster])
        for tried in faster:
            if any(tried.choice is choice for choice in self._late):
                self.ledger.note(replace(tried, reason=f"{tried.reason}{UNPROVEN}"))
        return base

    def _looked_at(self, base: Joined, sure: Joined, whole: Joined, look: Look) -> tuple[Joined, Look]:
        """The whole with a look at it, or what is sure of it, or the base and its own look, where the others fail."""
        for plan in (whole, sure) if whole != sure else (sure,):
            try:
                return plan, self.look_at(plan.choices)
            except ArmFailed as failure:
                if plan == sure:
                    self.ledger.note_failure([each for each in plan.choices if each not in base.choices], failure)
        return base, look

    def _looking_faster(self, results: Sequence[Tried], look: Look) -> list[Choice]:
        """What looked faster when it was tried last, by the seconds that it seemed to save; and what made no difference
        that was seen, but is a remedy for something that was counted."""
        last = [tried for tried in results if tried is self.ledger.last_trial(tried.choice)]
        last = [tried for tried in last if looks_faster(tried) or _remedies_what_was_counted(tried, look)]
        found = [tried.choice for tried in sorted(last, key=_saved_seconds, reverse=True)]
        return [choice for choice in found if self.ledger.is_sound(choice)]

    def _same_bits(self, results: Sequence[Tried], look: Look) -> list[Choice]:
        """What looked much faster and had the plain job's bits, which costs no further proof."""
        much = [tried for tried in results if _looks_much_faster(tried) or _remedies_what_was_counted(tried, look)]
        return [choice for choice in self._looking_faster(much, look) if choice.preserves is Preserves.BITS]

    def _wave(self, stage: Stage) -> list[Tried]:
        look, base = stage.look, stage.base.choices
        wave = self._choices(stage)
        first, waiting = first_values(choice for choice in wave if choice.technique != COMPILE)
        results = self.heats.of(look, base, first)
        while waiting and not self.heats.has_lead(results) and (onward := _next_values(waiting, results)):
            waiting = [choice for choice in waiting if choice not in onward]
            results += self.heats.of(look, base, onward)
        if self.heats.has_lead(results):
            self.heats.leave_undecided(results)
            return results
        reason = "its values before did not get better from one to the next"
        self.ledger.leave([Left(choice=choice, reason=reason) for choice in waiting], base)
        return results

    def _compiled(self, stage: Stage) -> list[Tried]:
        look, base = stage.look, stage.base.choices
        compiled = [choice for choice in self._choices(replace(stage, since=base)) if choice.technique == COMPILE]
        reason = why_not_compiled(look.run_seconds)
        if reason is None:
            with self.ledger.on_top():
                return self.heats.of(look, base, compiled, in_time=False)
        self.ledger.leave([Left(choice=choice, reason=reason) for choice in compiled], base)
        return []

    def _choices(self, stage: Stage) -> list[Choice]:
        look, base = stage.look, stage.base.choices
        only = self.ledger.options.only
        proposed = [choice for choice in look.proposed if only is None or choice.technique in only]
        found, refused = allowed(proposed, self.ledger.options.ceiling)
        found = [each for each in found if not changes_training(each)]  # which target.py judges
        found = [each for each in found if with_choice(base, each) is not None and self._is_open(each, stage)]
        found, hopeless = worth_trying(found, look.bounds(), look.run_seconds, partial(arm_seconds, look))
        self.ledger.leave(([*refused] if stage.since is None else []) + hopeless, base)
        return found

    def _was_lost(self, last: Tried, stage: Stage) -> bool:
        """Whether its answer went with a plan that was given up, or it was faster and had to stand back for such."""
        gave_up = not all(map(self.ledger.is_sound, stage.since or ()))
        return not all(map(self.ledger.is_sound, last.on)) or (gave_up and last.verdict == "faster")

    def _is_open(self, choice: Choice, stage: Stage) -> bool:
        """Whether it is to be tried in this wave: for the first time, or because its answer may be another now."""
        if not self.ledger.is_sound(choice):
            return False
        if stage.since is None or tried_again(choice.technique, stage.since):
            return True
        base, seconds = stage.base.choices, stage.look.run_seconds
        if any(same(choice, each) for each in self.heats.undecided) or self.ledger.remembered(choice, base) is not None:
            return True
        last = self.ledger.last_trial(choice)
        if last is not None:
            return shows_now(last, seconds) or self._was_lost(last, stage)
        row = [tried for tried in self.ledger.tried if tried.verdict != "skipped" and _in_a_row(tried.choice, choice)]
        if len(row) < AT_ONCE or row[-1].verdict == "faster":
            return True
        return any(shows_now(tried, seconds) for tried in row)


def _joined_since(before: Joined, after: Joined) -> list[Choice]:
    return [each for each in after.choices if each not in before.choices]


def _winners(results: Sequence[Tried]) -> list[Choice]:
    """The fastest choice of every technique that was faster, the fastest technique first."""
    faster = sorted((tried for tried in results if tried.verdict == "faster"), key=_ratio, reverse=True)
    best = dict[str, Choice]()
    for tried in faster:
        best.setdefault(tried.choice.technique, tried.choice)
    return list(best.values())


def _next_values(waiting: Sequence[Choice], results: Sequence[Tried]) -> list[Choice]:
    """The next value of every row whose last value was the best of its values so far."""
    onward = dict[str | None, Choice]()
    for choice in waiting:
        mine = [tried for tried in results if row_of(tried.choice) == row_of(choice)]
        if mine and mine[-1].verdict == "faster" and mine[-1] is max(mine, key=_ratio):
            onward.setdefault(row_of(choice), choice)
    return list(onward.values())


def _looks_much_faster(tried: Tried) -> bool:
    """Not by chance alone: what joins has others tried on top of it."""
    return tried.speedup is not None and tried.speedup.ratio >= LOOKS_MUCH_FASTER and is_likely_gain(tried.speedup)


def _remedies_what_was_counted(tried: Tried, look: Look) -> bool:
    """Whether it made no difference that was seen, and treats what surely takes a share that would be seen."""
    return tried.verdict == "no difference" and is_counted(tried.choice, look.bounds())


def _was_tried_beside(tried: Tried, base: Joined) -> bool:
    """Whether it was tried on top of the value of its technique that has joined, where one has."""
    rivals = [choice for choice in base.choices if choice.technique == tried.choice.technique]
    return all(any(same(rival, choice) for choice in tried.on) for rival in rivals)


def _in_a_row(one: Choice, other: Choice) -> bool:
    return row_of(one) is not None and row_of(one) == row_of(other)


def _saved_seconds(tried: Tried) -> float:
    """Of the planned run, as it seemed."""
    return tried.costs.total * (_ratio(tried) - 1) if tried.costs is not None else 0.0


def _ratio(tried: Tried) -> float:
    return tried.speedup.ratio if tried.speedup is not None else 0.0
