"""The search: from a job to the plan that is proven to end its planned run soonest.

1. A look at the plain job: what every technique says of it, where its seconds go, how long a step takes.
2. Waves of heats (waves.py): what is faster beside the plan so far joins it, and what only looks so may, as doubtful.
3. Every choice that joined is proven to preserve what it claims (proofs.py); what does not, goes.
4. The whole plan is confirmed on new windows, and what earns nothing there goes as well (final.py).
5. Where training may change, what changes it is judged by whole runs, on top of that plan (target.py).

Whatever is found out is a record of the file of trials, kept as soon as it is known. A search that is told the records
of an earlier one on the same job and machine repeats none of its trials, only the proofs and the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hasten.errors import InvalidMeasurement, NotMeasurable
from hasten.facts.choice import Choice, Speedup
from hasten.facts.trials import (
    Confirmed,
    Costs,
    Doing,
    Ended,
    Memory,
    Plain,
    Rates,
    Record,
    Step,
    Surveyed,
    differs_from_itself,
)
from hasten.measure.paired_timing import LEAST_PAIRS
from hasten.tune.proof.by_losses import SEEDS, ShortRuns
from hasten.tune.proof.proofs import prove
from hasten.tune.search.candidates import plan_of, same
from hasten.tune.search.compared_arm import WINDOW_SECONDS, Entry
from hasten.tune.search.comparison import Pace, run_heat
from hasten.tune.search.confirmation import PLAIN, WHOLE, confirm
from hasten.tune.search.needed import REPORT_SECONDS, SLACK
from hasten.tune.search.objective import speedup, spread_over
from hasten.tune.search.plan_profile import Look, look_at
from hasten.tune.search.round_trials import Heats, watching
from hasten.tune.search.rounds import Waves
from hasten.tune.search.search_log import SHARE_OF_CURVES, Ledger, Options
from hasten.tune.search.target import Gained, judge_training
from hasten.tune.search.time_needed import last_pace, last_seconds
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed


@dataclass(kw_only=True, slots=True)
class Found:
    """What a search has come to. proven: the best plan that is proven so far; gained: what may be added to it that
    changes training, None where nothing may, or nothing is sooner at the target."""

    look: Look
    ledger: Ledger
    proven: Confirmed | None = None
    gained: Gained | None = None
    interrupt: KeyboardInterrupt | None = None  # that ended the search

    @property
    def interrupted(self) -> bool:
        return self.interrupt is not None

    @property
    def has_plan(self) -> bool:
        return self.proven is not None or self.gained is not None


class Search:
    """Call it once. keep: takes every record as soon as it is known; tell: what the search is at; earlier: the records
    of a search of the same key; began: by time.monotonic(), when its time began, None for now."""

    def __init__(
        self,
        arms: Arms,
        job: str,
        options: Options,
        *,
        keep: Callable[[Record], None],
        tell: Callable[[Doing], None],
        earlier: Callable[[Surveyed], Sequence[Record]],
        began: float | None = None,
    ) -> None:
        self._arms, self._earlier = arms, earlier
        began = time.monotonic() if began is None else began
        lost_seconds = partial(getattr, arms.other_programs, "lost_seconds")
        self._ledger = Ledger(options=options, keep=keep, tell=tell, lost_seconds=lost_seconds, began=began)
        self._looked = dict[tuple[str, ...], Look]()
        self._look_anew = partial(look_at, arms, job, options.ceiling)

    def __call__(self) -> Found:
        """Raises ArmFailed when the plain job itself fails, and NotMeasurable where other programs never left the
        processor to it before a plan was proven. A KeyboardInterrupt ends the search, not what it found."""
        ledger = self._ledger
        ledger.tell(Doing(what="looking at the job as it is"))
        look = self._look_at(())
        ledger.known = self._earlier(look.surveyed)
        ledger.keep(look.surveyed)
        ledger.keep(look.budget)
        look = replace(look, costs=_last_costs(ledger.known))
        found = Found(look=look, ledger=ledger)
        try:
            heats = Heats(arms=self._arms, ledger=ledger, plain=look)
            joined = Waves(heats=heats, look_at=self._look_at).run()
            found.look = heats.plain
            base = self._prove(found, (*joined.sure, *joined.doubtful))
            self._confirm(found, base, [choice for choice in base if choice in joined.doubtful])
            self._show(found)
            self._change_training(found)
            self._end(found)
        except NotMeasurable as error:
            if not found.has_plan:
                raise
            ledger.tell(Doing(what=f"{error.what}; what was proven before stays", stays=True))
        except KeyboardInterrupt as interrupt:
            found.interrupt = interrupt
        return found

    def _end(self, found: Found) -> None:
        choices = found.proven.choices if found.proven is not None else ()
        choices = found.gained.choices if found.gained is not None else choices
        self._ledger.keep(Ended(choices=tuple(choices), seconds=self._ledger.seconds))

    def _look_at(self, base: Sequence[Choice]) -> Look:
        """At the job under a plan of these choices, once for each plan."""
        name = _name(base)
        if name not in self._looked:
            self._looked[name] = self._look_anew(base)
        return self._looked[name]

    def _nearest_look(self, base: Sequence[Choice], plain: Look) -> Look:
        """At as many of these choices as a plan had that was looked at; plain: what is known of none."""
        names = [name for name in self._looked if name and {*name} <= {*_name(base)}]
        return self._looked[max(names, key=len)] if names else plain

    def _prove(self, found: Found, base: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """The choices that preserve what they claim."""
        look, ledger = found.look, self._ledger
        pair_seconds = look.step_seconds + self._nearest_look(base, look).step_seconds
        steps = int(ledger.options.seconds * SHARE_OF_CURVES / (SEEDS * pair_seconds))
        runs = ShortRuns(
            first_seed=look.surveyed.seed,
            steps=min(steps, look.length.steps),
            seconds_left=lambda: ledger.seconds_left,
        )
        return prove(self._arms, base, ledger, runs)

    def _confirm(self, found: Found, base: tuple[Choice, ...], doubtful: Sequence[Choice]) -> None:
        if not base:
            return

        look = found.look

        def kept(confirmed: Confirmed) -> Confirmed:
            plain = spread_over(confirmed.plain, look.costs)
            confirmed, found.look = replace(confirmed, plain=plain), replace(look, costs=plain)
            self._ledger.keep(confirmed)
            return confirmed

        def proven(confirmed: Confirmed) -> None:
            if not self._is_spoiled(confirmed):
                found.proven = kept(confirmed)

        pace = self._last_pace(look, base, doubtful)

        def again(left: Sequence[Choice]) -> Pace | None:
            still = [choice for choice in left if choice in doubtful]
            return self._last_pace(look, left, still) if self._has_time_for_last(look, left, still) else None

        self._ledger.tell(Doing(what="confirming"))
        run = partial(
            confirm,
            self._arms,
            base,
            pace,
            look.length,
            watching(self._ledger, "confirming"),
            proven,
            room=look.room,
            doubtful=doubtful,
            again=again,
        )
        try:
            final = run()
            if self._is_spoiled(final.confirmed):
                with self._ledger.on_top():
                    final = run()
        except ArmFailed as failure:
            if found.proven is None:
                who = "the plan with it" if failure.arm == WHOLE else "the job itself, beside the plan with it,"
                self._ledger.note_failure(base, failure, who)
            return
        if self._is_spoiled(final.confirmed):
            noise = final.confirmed.noise
            raise NotMeasurable(
                f"not measurable now: two processes of the same job differ in speed, {noise}",
                fix="run the same command when the machine is quiet, which continues this search; on a machine that is "
                "never quiet, add --busy",
            )
        if found.proven is None:
            kept(final.confirmed)
        for name, sizes in final.outcome.memory.items():
            self._ledger.keep(Memory(arm=name, bytes=sizes))

    def _is_spoiled(self, confirmed: Confirmed) -> bool:
        """Whether something but other programs' use of the processor changed the speed meanwhile: then the job differs
        from itself in a second process."""
        return self._arms.other_programs.are_avoided and differs_from_itself(confirmed.noise)

    def _change_training(self, found: Found) -> None:
        """These runs come on top of the time that the search was given."""

        def won(gained: Gained) -> None:
            found.gained = gained

        base = () if found.proven is None else found.proven.choices
        judge_training(self._arms, self._ledger, found.look, base, won)

    def _last_pace(self, look: Look, base: Sequence[Choice], doubtful: Sequence[Choice]) -> Pace:
        sure, nearest = _others(base, doubtful), self._nearest_look(base, look)
        return last_pace(look, nearest, sure, doubtful, self._once(base, nearest), self._seconds_to_report)

    def _has_time_for_last(self, look: Look, base: Sequence[Choice], doubtful: Sequence[Choice]) -> bool:
        sure, nearest = _others(base, doubtful), self._nearest_look(base, look)
        needed = last_seconds(look, nearest, sure, doubtful, once=self._once(base, nearest))
        return needed < self._seconds_to_report

    @property
    def _seconds_to_report(self) -> float:
        return (self._ledger.seconds_left - REPORT_SECONDS) / SLACK

    def _once(self, base: Sequence[Choice], look: Look) -> float:
        """Seconds that a process of this plan pays once, such as for compiling, beyond those that the look says."""
        beyond = look.start_seconds + look.length.process_seconds
        return max(0.0, *(self._one_off(choice) - beyond for choice in base))

    def _one_off(self, choice: Choice) -> float:
        """Seconds that an arm with this choice paid once, such as for compiling."""
        last = self._ledger.last_trial(choice)
        return 0.0 if last is None or last.costs is None else last.costs.one_off

    # ── for the report ──────────────────────────────────────────────────────────────────────────────────────────────

    def _show(self, found: Found) -> None:
        """What nothing is decided by: the plan's own budget, its rates, and the way to it choice by choice. Where an
        arm of these fails, the plan stays proven, and the report lacks them."""
        if found.proven is None:
            return
        try:
            self._show_plan(found, found.proven)
        except (ArmFailed, InvalidMeasurement) as failure:
            self._ledger.tell(Doing(what=f"a part of the report is missing: {failure}"))

    def _show_plan(self, found: Found, proven: Confirmed) -> None:
        self._ledger.tell(Doing(what="looking at the plan"))
        self._ledger.keep(self._look_at(proven.choices).budget)
        with self._arms.start("rates", plan_of(proven.choices)) as arm:
            traced = arm.ask("rates")
        columns = {name: tuple(values) for name, values in traced.items()}
        self._ledger.keep(Rates(**columns))
        for step in self._way(found.look, proven):
            self._ledger.keep(step)

    def _way(self, look: Look, proven: Confirmed) -> list[Step]:
        """The planned run's seconds with one choice more at a time. Nothing where it would take time that is not left.
        Of a plan of three choices it takes none where the first one was tried alone: that trial tells.

        The last steps are known: the plan was measured, and beside it the plan without its last choice.
        """
        choices, plain, planned = proven.choices, proven.plain.total, proven.planned_seconds
        ratios = self._first_choices(look, choices[:-2])
        if ratios is None:
            return []
        if len(choices) > 1:
            last = next((earned.speedup for earned in proven.earned if same(earned.choice, choices[-1])), None)
            if last is None or not last.pairs:
                return []
            total = planned / plain
            ratios.append(
                Speedup(
                    ratio=1 / (total * last.ratio),
                    low=1 / (total * last.high),
                    high=1 / (total * last.low),
                    pairs=last.pairs,
                )
            )
        steps = [Step(choice=None, total=plain, low=plain, high=plain)]
        for choice, ratio in zip(choices, [*ratios, proven.speedup], strict=True):
            steps.append(Step(choice=choice, total=plain / ratio.ratio, low=plain / ratio.high, high=plain / ratio.low))
        return steps

    def _first_choices(self, look: Look, choices: Sequence[Choice]) -> list[Speedup] | None:
        """How many times as fast as the plain job the first one of them is, the first two, and so on."""
        if not choices:
            return []
        needed = (len(choices) + 1) * (look.arm_start_seconds + LEAST_PAIRS * look.window_seconds)
        if self._ledger.seconds_left < needed:
            return self._first_alone(choices)
        names = {f"first {count}": choices[:count] for count in range(1, len(choices) + 1)}
        entries = [Entry(name=name, plan=plan_of(first), stays=True) for name, first in names.items()]
        pace = Pace(
            steps=look.steps_in(WINDOW_SECONDS),
            evaluations=look.evaluations_at_the_end,
            looks=(),
            resident=len(entries) < look.room,
        )
        watch = watching(self._ledger, "showing the way")
        outcome = run_heat(self._arms, Entry(name=PLAIN, plan=plan_of([])), entries, pace, look.length, watch)
        if outcome.failed:
            return None
        return [speedup(outcome.base, outcome.seen[name], look.length) for name in names]

    def _first_alone(self, choices: Sequence[Choice]) -> list[Speedup] | None:
        """By the trial that it joined by; None for more than one, and where it was not tried alone."""
        trials = [tried for tried in self._ledger.tried if not tried.on and same(tried.choice, choices[0])]
        found = [tried.speedup for tried in trials if tried.speedup is not None]
        return found[-1:] if len(choices) == 1 and found else None


def _last_costs(known: Sequence[Record]) -> Costs | None:
    """Of the plain job, in an earlier search."""
    for record in reversed(known):
        if isinstance(record, Plain):
            return record.costs
        if isinstance(record, Confirmed):
            return record.plain
    return None


def _others(choices: Sequence[Choice], some: Sequence[Choice]) -> list[Choice]:
    return [choice for choice in choices if choice not in some]


def _name(base: Sequence[Choice]) -> tuple[str, ...]:
    """Of a plan, whatever order its choices are in."""
    return tuple(sorted(map(repr, base)))
