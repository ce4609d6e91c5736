"""Waves of heats: what joins the plan, one choice at a time.

A wave tries every choice that may gain, each one alone on top of the plan so far, most promising first. The fastest
value of every technique that was faster joins. The next wave tries on top of that what the change can have turned
round, what it has made possible (once a loader is fast, a fast model shows), and what made no difference to a run that
is much shorter now. A wave that adds nothing is the last.

Values of one technique that lie in a row, such as sizes of a microbatch, are tried two at first, and further ones only
as long as each is better than the one before. Compiling is tried last, on top of all that joined, and by itself: one
trial takes longer than all others, and only a run that is long enough to earn it is put to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hasten.facts.choice import Choice, Preserves, Speedup
from hasten.facts.trials import Doing, Noise, Tried
from hasten.measure.paired import early_speedup
from hasten.tune.arms import Arms
from hasten.tune.by_losses import FEWEST_STEPS, SEEDS
from hasten.tune.candidates import (
    Left,
    allowed,
    changes_training,
    first_values,
    joined,
    plan_of,
    row_of,
    tried_again,
    why_not_compiled,
    with_choice,
    worth_trying,
)
from hasten.tune.fate import ArmFailed
from hasten.tune.final import AGAIN, PLAIN
from hasten.tune.heat import Outcome, Pace, is_known, run_heat
from hasten.tune.ledger import SHARE_OF_CURVES, Ledger
from hasten.tune.look import Look
from hasten.tune.objective import WORTH_SEEING, costs, is_gain, shows_now, speedup
from hasten.tune.runner import WARM_UP_STEPS, Entry
from hasten.tune.sameness import same_losses

COMPILE = "compile"
EVALUATION_ALONE = frozenset({"evaluation_batch"})  # nothing of the steps: they have heats of their own
IN_A_HEAT = 6  # candidates that share the windows of one base
CONTROLS = 2  # the base, and in the first heat the base once more
EVALUATIONS = 4  # rounds that evaluate, where evaluations are compared
WINDOW_SECONDS = 0.2
MOST_WAVES = 4
ROUNDS_OF_AN_ARM, ROUNDS_OF_A_CONTROL = 5, 8  # of a heat, as most results are known after them
# What the end is taken to need, where some three choices come to it: arms, windows of the plain job's length,
# seconds of keeping float64 references and steps of the proof beside them, and what is looked at for the report.
ARMS_OF_THE_END, WINDOWS_OF_THE_END = 6, 42
REFERENCES_SECONDS, STEPS_OF_GRADIENTS = 6.0, 8
REPORT_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Waves:
    """look_at: a look at the job under a plan of these choices."""

    arms: Arms
    ledger: Ledger
    look_at: Callable[[Sequence[Choice]], Look]

    def run(self, look: Look) -> tuple[Choice, ...]:
        """look: at the plain job. The choices that joined, in that order. Raises ArmFailed when the plain job fails."""
        base, since = tuple[Choice, ...](), None
        for _ in range(MOST_WAVES):
            results = self._wave(look, base, since)
            winners = _winners([tried for tried in results if self.ledger.is_sound(tried.choice)])
            if not winners:
                break
            before, base, since = base, joined(base, winners), winners
            try:
                look = self.look_at(base)
            except ArmFailed as failure:
                self.ledger.note_failure(winners, failure)
                return before
            if self.ledger.seconds_left < self._end_seconds(look, base):
                break
        return joined(base, _winners(self._compiled(look, base)))

    def _wave(self, look: Look, base: tuple[Choice, ...], since: Sequence[Choice] | None) -> list[Tried]:
        """since: what joined the base after the last wave; None before the first one."""
        wave = self._choices(look, base, since)
        first, waiting = first_values(choice for choice in wave if choice.technique != COMPILE)
        results = self._heats(look, base, first)
        while waiting and (onward := _next_values(waiting, results)):
            waiting = [choice for choice in waiting if choice not in onward]
            results += self._heats(look, base, onward)
        reason = "its values before did not get better from one to the next"
        self.ledger.leave([Left(choice=choice, reason=reason) for choice in waiting], base)
        return results

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
        found = [each for each in found if with_choice(base, each) is not None and self._is_open(each, look, since)]
        found, hopeless = worth_trying(found, look.bounds(), look.run_seconds, partial(_arm_seconds, look))
        self.ledger.leave(([*refused] if since is None else []) + hopeless, base)
        return found

    def _is_open(self, choice: Choice, look: Look, since: Sequence[Choice] | None) -> bool:
        last = self.ledger.last_trial(choice)
        if since is None or last is None or shows_now(last, look.run_seconds):
            return True
        return tried_again(choice.technique, since)

    # ── heats ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _heats(
        self, look: Look, base: tuple[Choice, ...], choices: Sequence[Choice], *, in_time: bool = True
    ) -> list[Tried]:
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
            while waiting and (heat := self._next_heat(look, base, waiting, in_time=in_time)):
                waiting = [choice for choice in waiting if choice not in heat]
                results += self._heat(look, base, heat, in_time=in_time)
            self.ledger.leave([Left(choice=each, reason="the time was over") for each in waiting], base)
        return results

    def _next_heat(
        self, look: Look, base: tuple[Choice, ...], waiting: Sequence[Choice], *, in_time: bool
    ) -> list[Choice]:
        """The most promising ones, as many as fit beside each other and into the time; in the first heat one at least.

        What needs a proof that takes too long lets others go before it.
        """
        most = min(IN_A_HEAT, max(look.room - CONTROLS, 1))
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
        entries = [Entry(name=str(choice), plan=plan_of(with_choice(base, choice) or base)) for choice in heat]
        if not self.ledger.heats:
            entries.append(Entry(name=AGAIN, plan=plan_of(base), stays=True))
        self.ledger.heats += 1
        resident = len(heat) + CONTROLS <= look.room
        end = self._end_seconds(look, [*base, *heat])

        def known(ratios: Sequence[float]) -> bool:
            return is_known(ratios) or (in_time and self.ledger.seconds_left < end)

        pace = Pace(steps=look.steps_in(WINDOW_SECONDS), evaluations=_evaluations(heat), resident=resident, known=known)
        on = f"trying{', on top of ' + ', '.join(map(str, base)) if base else ''}"
        outcome = run_heat(
            self.arms, Entry(name=PLAIN, plan=plan_of(base)), entries, pace, look.length, watching(self.ledger, on)
        )
        if AGAIN in outcome.seen:
            noise = _speedup_of(AGAIN, outcome, look)
            self.ledger.keep(Noise(speedup=noise, window_steps=pace.steps))
        results = [_tried(choice, base, outcome, look) for choice in heat]
        for tried in results:
            self.ledger.note(tried)
            if tried.verdict == "faster" and tried.choice.preserves is Preserves.BITS:
                losses = outcome.losses
                self.ledger.note(same_losses(tried.choice, losses[PLAIN], losses[str(tried.choice)]))
        return results

    def _has_time_for(self, look: Look, base: Sequence[Choice], heat: Sequence[Choice]) -> bool:
        """Whether a heat leaves time for the end."""
        window, controls = max(WINDOW_SECONDS, look.step_seconds), 1 if self.ledger.heats else CONTROLS
        seconds = math.fsum(_arm_seconds(look, choice) for choice in heat)
        seconds += controls * (_starting_seconds(look) + window * ROUNDS_OF_A_CONTROL)
        return seconds + self._end_seconds(look, [*base, *heat]) < self.ledger.seconds_left

    def _end_seconds(self, look: Look, choices: Sequence[Choice]) -> float:
        """What proofs and confirmation of a plan that may have these choices are taken to need."""
        claims, step = {choice.preserves for choice in choices}, look.step_seconds
        seconds = REPORT_SECONDS + WINDOWS_OF_THE_END * max(WINDOW_SECONDS, step)
        evaluating = look.evaluations_at_the_end * look.evaluating_seconds
        seconds += ARMS_OF_THE_END * (_starting_seconds(look) + evaluating)
        if Preserves.ROUNDING in claims:
            seconds += REFERENCES_SECONDS + STEPS_OF_GRADIENTS * step
        if Preserves.STATISTICS in claims:
            seconds += max(self.ledger.options.seconds * SHARE_OF_CURVES, step * FEWEST_STEPS * 2 * SEEDS)
        return seconds


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


def _arm_seconds(look: Look, choice: Choice) -> float:
    """What trying one choice is taken to need: an arm of its own."""
    windows = max(WINDOW_SECONDS, look.step_seconds) * ROUNDS_OF_AN_ARM
    return _starting_seconds(look) + windows + _evaluations([choice]) * look.evaluating_seconds


def _starting_seconds(look: Look) -> float:
    """Of an arm, until its first window that counts."""
    step = look.step_seconds
    return look.start_seconds + WARM_UP_STEPS * step + (WINDOW_SECONDS if step < WINDOW_SECONDS else 0.0)


def _evaluations(heat: Sequence[Choice]) -> int:
    """In how many rounds every arm of a heat evaluates."""
    return EVALUATIONS if any(choice.technique in EVALUATION_ALONE for choice in heat) else 0


def _ratio(tried: Tried) -> float:
    return tried.speedup.ratio if tried.speedup is not None else 0.0
