"""The trials of a wave: its choices in heats of a few, each beside the same plan, as far as there is time.

The most promising go first. A choice with a large lead ends the heat that it is in, and those after it: on top of it
all others take less time to try. Who had to leave for that, or because the time for the end began, was not answered: it
stays open, in this search and in the next one.

What an earlier search has found out on the same plan is taken from its records and not tried again. What claims to
leave every bit as it is, is compared in the very windows of its trial; together with all others that claim it, it is
proven again (by_bits.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from hasten.facts.choice import Choice, Preserves, Speedup
from hasten.facts.trials import Doing, Noise, Plain, Tried
from hasten.measure.paired_timing import LEAST_PAIRS, early_speedup
from hasten.tune.proof.sameness import same_losses
from hasten.tune.search.bounds import is_counted
from hasten.tune.search.candidates import EVALUATION_ALONE, OUT_OF_TIME, Left, plan_of, same, with_choice
from hasten.tune.search.compared_arm import WINDOW_SECONDS, Entry
from hasten.tune.search.comparison import CLEAR, Outcome, Pace, is_known, run_heat
from hasten.tune.search.confirmation import AGAIN, PLAIN
from hasten.tune.search.needed import end_seconds, heat_seconds
from hasten.tune.search.objective import WORTH_SEEING, costs, is_gain, speedup, spread_over
from hasten.tune.search.plan_profile import Look
from hasten.tune.search.search_log import Ledger
from hasten.tune.search.shortest import warning_of
from hasten.tune.trials.arms import Arms

IN_A_HEAT = 6  # candidates that share the windows of one base
IN_THE_FIRST_HEAT = 4  # fewer, as one of the most promising is the likeliest to have a large lead
CONTROLS = 2  # the base, and in the first heat the base once more
LEAD = 1.3  # a speed-up by which all later trials take so much less time that it is adopted before them


@dataclass(kw_only=True, slots=True)
class Heats:
    """plain: the look at the job as it is, with the step that its last heat had; undecided: choices that had to leave
    when another's lead ended their heat."""

    arms: Arms
    ledger: Ledger
    plain: Look
    undecided: list[Choice] = field(default_factory=list[Choice])

    def of(
        self, look: Look, base: tuple[Choice, ...], choices: Sequence[Choice], *, in_time: bool = True
    ) -> list[Tried]:
        """The trials of all that there is time for, up to one with a large lead. look: at the job under the base.

        Raises ArmFailed when the base fails."""
        results = list[Tried]()
        for choice in choices:
            remembered = self.ledger.remembered(choice, base)
            if remembered is not None:
                self.ledger.note_remembered(remembered)
                results.append(remembered)
        new = [choice for choice in choices if self.ledger.remembered(choice, base) is None]
        training = [choice for choice in new if choice.technique not in EVALUATION_ALONE]
        evaluating = [choice for choice in new if choice.technique in EVALUATION_ALONE]
        always = self._whatever_the_time(look, base, new) if in_time else new
        for waiting in (training, evaluating):
            while waiting and not (in_time and self.has_lead(results)):
                heat = self._next(look, base, waiting, always)
                if not heat:
                    break
                waiting = [choice for choice in waiting if choice not in heat]
                results += self._run(look, base, heat, always, in_time=in_time)
            if not self.has_lead(results):
                self.ledger.leave([Left(choice=each, reason=OUT_OF_TIME) for each in waiting], base)
        return results

    def has_lead(self, results: Sequence[Tried]) -> bool:
        faster = [tried for tried in results if tried.verdict == "faster" and _ratio(tried) >= LEAD]
        return any(self.ledger.is_sound(tried.choice) for tried in faster)

    def leave_undecided(self, results: Sequence[Tried]) -> None:
        decided = [tried.choice for tried in results if not _is_undecided(tried)]
        left = [*self.undecided, *(tried.choice for tried in results if _is_undecided(tried))]
        self.undecided = [choice for choice in left if not any(same(choice, each) for each in decided)]

    def _whatever_the_time(self, look: Look, base: tuple[Choice, ...], waiting: Sequence[Choice]) -> Sequence[Choice]:
        """Of the first heat the most promising one, and the first that treats what was counted: a search that has not
        asked after these has found out nothing. Where there is no time for them, that is told."""
        if self.ledger.heats or not waiting:
            return ()
        bounds = look.bounds()
        best = next((choice for choice in waiting[1:] if not is_counted(choice, bounds)), None)
        always = [waiting[0], *([best] if best and is_counted(waiting[0], bounds) else [])]
        needed = self._seconds_for(look, base, always)
        if warning := warning_of(look.step_seconds, needed, self.ledger.seconds_left):
            self.ledger.tell(warning)
        return always

    def _next(
        self, look: Look, base: tuple[Choice, ...], waiting: Sequence[Choice], always: Sequence[Choice]
    ) -> list[Choice]:
        """The most promising ones, as many as fit beside each other and into the time. What needs a proof that takes
        too long lets others go before it."""
        most = min(IN_A_HEAT if self.ledger.heats else IN_THE_FIRST_HEAT, max(look.room - CONTROLS, 1))
        most, heat = math.ceil(len(waiting) / math.ceil(len(waiting) / most)), list[Choice]()
        for choice in waiting:
            sure = any(choice is each for each in always)
            if len(heat) < most and (sure or self._seconds_for(look, base, [*heat, choice]) < self.ledger.seconds_left):
                heat.append(choice)
        return heat

    def _run(
        self,
        look: Look,
        base: tuple[Choice, ...],
        heat: Sequence[Choice],
        always: Sequence[Choice],
        *,
        in_time: bool,
    ) -> list[Tried]:
        """The first heat of a search has the base a second time, to see what no difference looks like. Where the time
        for the end begins, all arms go at the next look but those that are asked whatever the time."""
        evaluates = all(choice.technique in EVALUATION_ALONE for choice in heat)
        end = self.longest_end(look, base, heat)

        def known_or_late(ratios: Sequence[float]) -> bool:
            return is_known(ratios) or self.ledger.seconds_left < end

        entries = [
            Entry(
                name=str(choice),
                plan=plan_of(with_choice(base, choice) or base),
                same_steps=evaluates,
                known=is_known if any(choice is each for each in always) else known_or_late,
            )
            for choice in heat
        ]
        if not (self.ledger.heats or base or evaluates):
            entries.append(Entry(name=AGAIN, plan=plan_of(base), stays=True))
        self.ledger.heats += 1
        pace = Pace(
            steps=1 if evaluates else look.steps_in(WINDOW_SECONDS),
            resident=len(heat) + CONTROLS <= look.room,
            over=_is_lead if in_time else None,
        )
        on = f"trying{', on top of ' + ', '.join(map(str, base)) if base else ''}"
        outcome = run_heat(
            self.arms, Entry(name=PLAIN, plan=plan_of(base)), entries, pace, look.length, watching(self.ledger, on)
        )
        if AGAIN in outcome.seen:
            self.ledger.keep(Noise(speedup=_speedup_of(AGAIN, outcome, look), window_steps=pace.steps))
        if not base and not evaluates:
            step = median(window.seconds_per_step for window in outcome.base.windows)
            found = spread_over(costs(outcome.base, look.length), self.plain.costs)
            self.plain = replace(self.plain, step_seconds=step, costs=found)
            self.ledger.keep(Plain(costs=found))
        results = [_tried(choice, base, outcome, look) for choice in heat]
        self._note(results, outcome)
        return results

    def _note(self, results: Sequence[Tried], outcome: Outcome) -> None:
        for tried in results:
            self.ledger.note(tried)
            if tried.choice.preserves is Preserves.BITS and tried.verdict in ("faster", "no difference"):
                losses = outcome.losses
                self.ledger.note(same_losses(losses[PLAIN], losses[str(tried.choice)]).of(tried.choice))
        if outcome.over:
            self.leave_undecided(results)

    # ── the time ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _seconds_for(self, look: Look, base: Sequence[Choice], heat: Sequence[Choice]) -> float:
        """Of a heat, and of the end after it."""
        seconds = heat_seconds(look, heat, 1 if self.ledger.heats else CONTROLS)
        return seconds + self.longest_end(look, base, heat)

    def longest_end(self, look: Look, base: Sequence[Choice], heat: Sequence[Choice]) -> float:
        """With whichever of them joins; where several would, those join that there is time for."""
        return max(self.end_seconds(look, with_choice(base, choice) or base) for choice in heat)

    def has_time_to_end(self, look: Look, sure: Sequence[Choice], doubtful: Sequence[Choice]) -> bool:
        return self.end_seconds(look, sure, doubtful) < self.ledger.seconds_left

    def end_seconds(self, look: Look, sure: Sequence[Choice], doubtful: Sequence[Choice] = ()) -> float:
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
    unknown = name in outcome.early and not (is_gain(found) or is_known(outcome.early[name]))
    verdict = _verdict(found)
    return Tried(
        choice=choice, on=base, verdict=verdict, reason=f"{found}", speedup=found, costs=seen, cut_short=unknown
    )


def _speedup_of(name: str, outcome: Outcome, look: Look) -> Speedup:
    if name in outcome.early:
        return early_speedup(outcome.early[name])
    return speedup(outcome.base, outcome.seen[name], look.length)


def _verdict(found: Speedup) -> str:
    if is_gain(found):
        return "faster"
    return "slower" if found.high < 1 / WORTH_SEEING else "no difference"


def _is_lead(ratios: Sequence[float]) -> bool:
    found = early_speedup(ratios)
    return is_gain(found) and found.ratio >= LEAD


def _is_undecided(tried: Tried) -> bool:
    """Whether it left early and may be clearly faster all the same."""
    found = tried.speedup
    return tried.verdict == "no difference" and found is not None and found.pairs < LEAST_PAIRS and found.high > CLEAR


def _ratio(tried: Tried) -> float:
    return tried.speedup.ratio if tried.speedup is not None else 0.0
