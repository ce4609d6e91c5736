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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from hasten.facts.choice import Choice, Preserves, Speedup
from hasten.facts.trials import Doing, Noise, Tried
from hasten.measure.paired import LEAST_PAIRS, early_speedup
from hasten.tune.arms import Arms
from hasten.tune.bounds import is_counted
from hasten.tune.candidates import (
    AT_ONCE,
    EVALUATION_ALONE,
    UNPROVEN,
    Left,
    allowed,
    changes_training,
    first_values,
    plan_of,
    row_of,
    same,
    tried_again,
    why_not_compiled,
    with_choice,
    worth_trying,
)
from hasten.tune.fate import ArmFailed
from hasten.tune.final import AGAIN, PLAIN
from hasten.tune.heat import CLEAR, Outcome, Pace, is_known, run_heat
from hasten.tune.joined import Joined
from hasten.tune.ledger import Ledger
from hasten.tune.look import Look
from hasten.tune.needed import arm_seconds, end_seconds, heat_seconds
from hasten.tune.objective import WORTH_SEEING, costs, is_gain, is_likely_gain, looks_faster, shows_now, speedup
from hasten.tune.runner import WINDOW_SECONDS, Entry
from hasten.tune.sameness import same_losses

COMPILE = "compile"
IN_A_HEAT = 6  # candidates that share the windows of one base
IN_THE_FIRST_HEAT = 4  # fewer, as one of the most promising is the likeliest to have a large lead
CONTROLS = 2  # the base, and in the first heat the base once more
MOST_WAVES = 6
LOOKS_MUCH_FASTER = 1.1  # what looks to be worth so much joins at once, if it can do no harm
LEAD = 1.3  # a speed-up by which all later trials take so much less time that it is adopted before them


@dataclass(kw_only=True, slots=True)
class Waves:
    """plain: the look at the job as it is, with the step that its last heat had; look_at: a look at it under a plan of
    these choices."""

    arms: Arms
    ledger: Ledger
    plain: Look
    look_at: Callable[[Sequence[Choice]], Look]
    _undecided: list[Choice] = field(default_factory=list[Choice])  # when another's lead ended their heat
    _late: list[Choice] = field(default_factory=list[Choice])  # that were faster, without time to prove them

    def run(self) -> Joined:
        """Raises ArmFailed when the plain job fails."""
        look, base, since = self.plain, Joined(), None
        for _ in range(MOST_WAVES):
            results = self._wave(look, base.choices, since)
            winners = _winners([tried for tried in results if self.ledger.is_sound(tried.choice)])
            if not winners:
                break
            look = look if base.choices else self.plain
            sure, before = self._with_winners(look, base, winners, results), base
            if sure == base:  # there is no time to prove any of them
                break
            base, look = self._looked_at(before, sure, sure.with_doubtful(self._same_bits(results, look)), look)
            since = [each for each in base.choices if each not in before.choices]
        base = base.with_winners(_winners(self._compiled(look, base.choices)))
        base = self._with_late(look, base)

        def has_time(doubtful: tuple[Choice, ...]) -> bool:
            return self._has_time_to_end(look, base.sure, doubtful)

        return base.with_doubtful(self._looking_faster(self.ledger.tried, look), has_time)

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
            if self._has_time_to_end(look, more.sure, more.doubtful):
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

    def _wave(self, look: Look, base: tuple[Choice, ...], since: Sequence[Choice] | None) -> list[Tried]:
        """since: what joined the base after the last wave; None before the first one."""
        wave = self._choices(look, base, since)
        first, waiting = first_values(choice for choice in wave if choice.technique != COMPILE)
        results = self._heats(look, base, first)
        while waiting and not self._has_lead(results) and (onward := _next_values(waiting, results)):
            waiting = [choice for choice in waiting if choice not in onward]
            results += self._heats(look, base, onward)
        if self._has_lead(results):
            self._leave_undecided(results)
            return results
        reason = "its values before did not get better from one to the next"
        self.ledger.leave([Left(choice=choice, reason=reason) for choice in waiting], base)
        return results

    def _has_lead(self, results: Sequence[Tried]) -> bool:
        faster = [tried for tried in results if tried.verdict == "faster" and _ratio(tried) >= LEAD]
        return any(self.ledger.is_sound(tried.choice) for tried in faster)

    def _leave_undecided(self, results: Sequence[Tried]) -> None:
        decided = [tried.choice for tried in results if not _is_undecided(tried)]
        left = [*self._undecided, *(tried.choice for tried in results if _is_undecided(tried))]
        self._undecided = [choice for choice in left if not any(same(choice, each) for each in decided)]

    def _compiled(self, look: Look, base: tuple[Choice, ...]) -> list[Tried]:
        compiled = [choice for choice in self._choices(look, base, base) if choice.technique == COMPILE]
        reason = why_not_compiled(look.run_seconds)
        if reason is None:
            return self._heats(look, base, compiled, in_time=False)
        self.ledger.leave([Left(choice=choice, reason=reason) for choice in compiled], base)
        return []

    def _choices(self, look: Look, base: tuple[Choice, ...], since: Sequence[Choice] | None) -> list[Choice]:
        only = self.ledger.options.only
        proposed = [choice for choice in look.proposed if only is None or choice.technique in only]
        found, refused = allowed(proposed, self.ledger.options.ceiling)
        found = [each for each in found if not changes_training(each)]  # which target.py judges
        found = [
            each for each in found if with_choice(base, each) is not None and self._is_open(each, look, base, since)
        ]
        found, hopeless = worth_trying(found, look.bounds(), look.run_seconds, partial(arm_seconds, look))
        self.ledger.leave(([*refused] if since is None else []) + hopeless, base)
        return found

    def _is_open(self, choice: Choice, look: Look, base: tuple[Choice, ...], since: Sequence[Choice] | None) -> bool:
        """Whether it is to be tried in this wave: for the first time, or because its answer may be another now."""
        if since is None or tried_again(choice.technique, since):
            return True
        if any(same(choice, each) for each in self._undecided) or self.ledger.remembered(choice, base) is not None:
            return True
        last = self.ledger.last_trial(choice)
        if last is not None:
            return shows_now(last, look.run_seconds)
        row = [tried for tried in self.ledger.tried if tried.verdict != "skipped" and _in_a_row(tried.choice, choice)]
        if len(row) < AT_ONCE or row[-1].verdict == "faster":
            return True
        return any(shows_now(tried, look.run_seconds) for tried in row)

    # ── heats ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _heats(
        self, look: Look, base: tuple[Choice, ...], choices: Sequence[Choice], *, in_time: bool = True
    ) -> list[Tried]:
        """Of all that there is time for, up to one with a large lead."""
        results = list[Tried]()
        for choice in choices:
            remembered = self.ledger.remembered(choice, base)
            if remembered is not None:
                self.ledger.note_remembered(remembered)
                results.append(remembered)
        new = [choice for choice in choices if self.ledger.remembered(choice, base) is None]
        training = [choice for choice in new if choice.technique not in EVALUATION_ALONE]
        evaluating = [choice for choice in new if choice.technique in EVALUATION_ALONE]
        for waiting in (training, evaluating):
            while waiting and not (in_time and self._has_lead(results)):
                heat = self._next_heat(look, base, waiting, in_time=in_time)
                if not heat:
                    break
                waiting = [choice for choice in waiting if choice not in heat]
                results += self._heat(look, base, heat, in_time=in_time)
            if not self._has_lead(results):
                self.ledger.leave([Left(choice=each, reason="the time was over") for each in waiting], base)
        return results

    def _next_heat(
        self, look: Look, base: tuple[Choice, ...], waiting: Sequence[Choice], *, in_time: bool
    ) -> list[Choice]:
        """The most promising ones, as many as fit beside each other and into the time; in the first heat one at least.

        What needs a proof that takes too long lets others go before it.
        """
        most = min(IN_A_HEAT if self.ledger.heats else IN_THE_FIRST_HEAT, max(look.room - CONTROLS, 1))
        most, heat = math.ceil(len(waiting) / math.ceil(len(waiting) / most)), list[Choice]()
        for choice in waiting:
            first_of_all = not (heat or self.ledger.heats)
            if len(heat) < most and (first_of_all or not in_time or self._has_time_for(look, base, [*heat, choice])):
                heat.append(choice)
        return heat

    def _heat(
        self, look: Look, base: tuple[Choice, ...], heat: Sequence[Choice], *, in_time: bool = True
    ) -> list[Tried]:
        """The first heat of a search has the base a second time, to see what no difference looks like. Where the time
        for the end begins, all arms go at the next look."""
        evaluates = all(choice.technique in EVALUATION_ALONE for choice in heat)
        plans = {str(choice): plan_of(with_choice(base, choice) or base) for choice in heat}
        entries = [Entry(name=name, plan=plan, same_steps=evaluates) for name, plan in plans.items()]
        if not self.ledger.heats:
            entries.append(Entry(name=AGAIN, plan=plan_of(base), stays=True, same_steps=evaluates))
        self.ledger.heats += 1
        resident = len(heat) + CONTROLS <= look.room
        end = self._longest_end(look, base, heat)

        def known(ratios: Sequence[float]) -> bool:
            return is_known(ratios) or (in_time and self.ledger.seconds_left < end)

        steps = 1 if evaluates else look.steps_in(WINDOW_SECONDS)
        pace = Pace(steps=steps, resident=resident, known=known, over=_is_lead if in_time else None)
        on = f"trying{', on top of ' + ', '.join(map(str, base)) if base else ''}"
        outcome = run_heat(
            self.arms, Entry(name=PLAIN, plan=plan_of(base)), entries, pace, look.length, watching(self.ledger, on)
        )
        if AGAIN in outcome.seen:
            noise = _speedup_of(AGAIN, outcome, look)
            self.ledger.keep(Noise(speedup=noise, window_steps=pace.steps))
        if not base and not evaluates:
            step = median(window.seconds_per_step for window in outcome.base.windows)
            self.plain = replace(self.plain, step_seconds=step)
        results = [_tried(choice, base, outcome, look) for choice in heat]
        for tried in results:
            self.ledger.note(tried)
            if tried.choice.preserves is Preserves.BITS and tried.verdict in ("faster", "no difference"):
                losses = outcome.losses
                self.ledger.note(same_losses(tried.choice, losses[PLAIN], losses[str(tried.choice)]))
        if outcome.over:
            self._leave_undecided(results)
        return results

    def _has_time_for(self, look: Look, base: Sequence[Choice], heat: Sequence[Choice]) -> bool:
        """Whether a heat leaves time for the end."""
        seconds = heat_seconds(look, heat, 1 if self.ledger.heats else CONTROLS)
        return seconds + self._longest_end(look, base, heat) < self.ledger.seconds_left

    def _longest_end(self, look: Look, base: Sequence[Choice], heat: Sequence[Choice]) -> float:
        """With whichever of them joins; where several would, those join that there is time for."""
        return max(self._end_seconds(look, with_choice(base, choice) or base) for choice in heat)

    def _has_time_to_end(self, look: Look, sure: Sequence[Choice], doubtful: Sequence[Choice]) -> bool:
        return self._end_seconds(look, sure, doubtful) < self.ledger.seconds_left

    def _end_seconds(self, look: Look, sure: Sequence[Choice], doubtful: Sequence[Choice] = ()) -> float:
        return end_seconds(self.plain, look, sure, doubtful, self.ledger.options.seconds)


def watching(ledger: Ledger, what: str) -> Callable[[int, int, dict[str, float]], None]:
    """Tells how a heat goes."""

    def watch(done: int, whole: int, ratios: dict[str, float]) -> None:
        ledger.tell(Doing(what=what, done=done, whole=whole, ratios=ratios))

    return watch


def _tried(choice: Choice, base: tuple[Choice, ...], outcome: Outcome, look: Look) -> Tried:
    name = str(choice)
    if name in outcome.failed:
        failure = outcome.failed[name]
        return Tried(choice=choice, on=base, verdict="failed", reason=f"{failure.fate.value}: {failure.what}")
    found, seen = _speedup_of(name, outcome, look), costs(outcome.seen[name], look.length)
    return Tried(choice=choice, on=base, verdict=_verdict(found), reason=f"{found}", speedup=found, costs=seen)


def _speedup_of(name: str, outcome: Outcome, look: Look) -> Speedup:
    if name in outcome.early:
        return early_speedup(outcome.early[name])
    return speedup(outcome.base, outcome.seen[name], look.length)


def _verdict(found: Speedup) -> str:
    if is_gain(found):
        return "faster"
    return "slower" if found.high < 1 / WORTH_SEEING else "no difference"


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


def _is_lead(ratios: Sequence[float]) -> bool:
    found = early_speedup(ratios)
    return is_gain(found) and found.ratio >= LEAD


def _looks_much_faster(tried: Tried) -> bool:
    """Not by chance alone: what joins has others tried on top of it."""
    return tried.speedup is not None and tried.speedup.ratio >= LOOKS_MUCH_FASTER and is_likely_gain(tried.speedup)


def _remedies_what_was_counted(tried: Tried, look: Look) -> bool:
    """Whether it made no difference that was seen, and treats what surely takes a share that would be seen."""
    return tried.verdict == "no difference" and is_counted(tried.choice, look.bounds())


def _is_undecided(tried: Tried) -> bool:
    """Whether it left early and may be clearly faster all the same."""
    found = tried.speedup
    return tried.verdict == "no difference" and found is not None and found.pairs < LEAST_PAIRS and found.high > CLEAR


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
