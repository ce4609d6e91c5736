"""Judges choices that change what is learned, by the time to the target: the result of the plan without the choice at
the end of its planned run from the same seed. What counts are the seconds to the first evaluation that is as good.

1. One whole run of each choice, from the job's own seed, on top of the plan so far. Those that are no sooner are
   dropped.
2. The best two run from five more seeds, beside the plan without them and interleaved: A B C, then C B A. A choice is
   kept when it reached the target from every seed, and was sooner beyond the spread of the five ratios (Student's t).
3. The fastest of those that are kept joins the plan.

It is a gain only if the run then ends at the target, so the plan says that as well (`stop_at`), with the target of the
job's own seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.trials import Doing, Reached, Tried
from hasten.tune.proof.time_to_target import (
    EvaluatedRun,
    TargetMetric,
    TargetPair,
    Time,
    evaluated_run,
    reached,
    target_metric,
    verdict,
)
from hasten.tune.search.candidates import changes_training, plan_of, with_choice
from hasten.tune.search.plan_profile import PlanProfile
from hasten.tune.search.search_log import SearchLog
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed

PAIRS = 5
FURTHER = 2  # choices that are trained from more than one seed, of those that were sooner from the first


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetGain:
    """choices: of the whole plan; the last one ends the run at its target. reached: of the choice that joined."""

    choices: tuple[Choice, ...]
    reached: Reached


def judge_training(arms: Arms, log: SearchLog, profile: PlanProfile, base: tuple[Choice, ...]) -> TargetGain | None:
    """Try what may change training on top of a plan that is proven, as far as the ceiling allows it. None where nothing
    reaches the target sooner."""
    only = log.options.only
    proposed = [choice for choice in profile.proposed if only is None or choice.technique in only]
    choices = [choice for choice in proposed if changes_training(choice) and with_choice(base, choice) is not None]
    if log.options.ceiling < Preserves.TRAINING or not choices:
        return None
    try:
        metric = target_metric(arms, plan_of(base))
    except ArmFailed as failure:
        _skip(log, choices, base, f"there is no target: {failure.reason}")
        return None
    if metric.refused is not None:
        _skip(log, choices, base, metric.refused)
        return None
    trials = TargetTrials(
        arms=arms,
        log=log,
        metric=metric,
        first_seed=profile.surveyed.seed,
        steps=profile.length.steps,
        run_seconds=profile.run_seconds,
    )
    with suppress(ArmFailed):  # of the plan itself, which is the reason of its choices
        return trials.fastest(base, choices)
    return None


@dataclass(kw_only=True, slots=True)
class TargetTrials:
    """All runs of one search. run_seconds: of a whole one, as far as that is known; targets: by seed."""

    arms: Arms
    log: SearchLog
    metric: TargetMetric
    first_seed: int
    steps: int
    run_seconds: float
    targets: dict[int, float] = field(default_factory=dict[int, float])
    _runs_left: int = 0

    def fastest(self, base: tuple[Choice, ...], choices: Sequence[Choice]) -> TargetGain | None:
        """The plan with the choice that reaches the target soonest; None where none is significantly sooner. Raises
        ArmFailed when the base fails."""
        try:
            sooner = self._sooner(base, choices)
            kept = self._kept(base, sooner[:FURTHER])
        except ArmFailed as failure:
            _skip(self.log, choices, base, f"the plan without it {failure.reason}")
            raise
        reason = "it was faster from one seed, but others were tried from more seeds instead"
        _skip(self.log, sooner[FURTHER:], base, reason)
        if not kept:
            return None
        best, *others = kept
        reason = f"it was faster, but {best.choice} was even faster, and one choice that changes training joins"
        _skip(self.log, [each.choice for each in others], base, reason)
        return TargetGain(choices=(*_joined(base, best.choice), self._end()), reached=best)

    def _end(self) -> Choice:
        """The choice that ends the run at the target."""
        option = "at_least" if self.metric.higher_is_better else "at_most"
        target: dict[str, Value] = {option: self.targets[self.first_seed]}
        return Choice(technique="stop_at", value=self.metric.metric, preserves=Preserves.TRAINING, options=target)

    def _sooner(self, base: tuple[Choice, ...], choices: Sequence[Choice]) -> list[Choice]:
        """Those that reach the target of the job's own seed sooner, the soonest first. Raises ArmFailed when the base
        fails."""
        seed = self.first_seed
        self._runs_left = 1 + len(choices) + PAIRS * (1 + min(len(choices), FURTHER))
        before = self._time_of_base(self._run(base, None, seed), seed)
        found = list[tuple[Choice, Time]]()
        for choice in choices:
            try:
                run = self._run(base, choice, seed)
            except ArmFailed as failure:
                self._add_failure(choice, base, failure)
                continue
            pair = self._pair(before, run, seed)
            record = reached(choice, base, self.metric, [pair])
            if pair.after is not None and (pair.ratio or 0) > 1:
                self.log.keep(record)
                found.append((choice, pair.after))
            else:
                self._add(record)
        return [choice for choice, _ in sorted(found, key=lambda each: each[1].seconds)]

    def _kept(self, base: tuple[Choice, ...], choices: Sequence[Choice]) -> list[Reached]:
        """Those that reach the target significantly sooner, the soonest first. Raises ArmFailed when the base fails."""
        running, found = {str(choice): (choice, list[TargetPair]()) for choice in choices}, list[Reached]()
        for number in range(PAIRS if choices else 0):
            seed, self._runs_left = self.first_seed + 1 + number, (PAIRS - number) * (1 + len(running))
            order = [None, *(choice for choice, _ in running.values())]
            runs, before = self._interleaved(base, order if number % 2 == 0 else order[::-1], seed)
            for name, (choice, pairs) in list(running.items()):
                run = runs[name]
                if isinstance(run, ArmFailed):
                    self._add_failure(choice, base, run)
                    del running[name]
                    continue
                pairs.append(self._pair(before, run, seed))
                if pairs[-1].ratio is None or len(pairs) == PAIRS:
                    found.append(reached(choice, base, self.metric, pairs))
                    self._add(found[-1])
                    del running[name]
            if not running:
                break
        kept = [record for record in found if record.kept]
        return sorted(kept, key=lambda record: record.speedup.ratio if record.speedup else 0.0, reverse=True)

    def _interleaved(
        self, base: tuple[Choice, ...], order: Sequence[Choice | None], seed: int
    ) -> tuple[dict[str, EvaluatedRun | ArmFailed], Time | None]:
        """One run of each, None being the base: those of the choices by name, and when the base reaches the target.

        Raises ArmFailed when the base fails."""
        runs = dict[str, EvaluatedRun | ArmFailed]()
        for choice in order:
            try:
                runs[str(choice)] = self._run(base, choice, seed)
            except ArmFailed as failure:
                if choice is None:
                    raise
                runs[str(choice)] = failure
        plain = runs.pop(str(None))
        assert isinstance(plain, EvaluatedRun)
        return runs, self._time_of_base(plain, seed)

    def _pair(self, before: Time | None, run: EvaluatedRun, seed: int) -> TargetPair:
        target = self.targets[seed]
        return TargetPair(seed=seed, target=target, before=before, after=run.reached_at(self.metric, target))

    def _time_of_base(self, run: EvaluatedRun, seed: int) -> Time | None:
        if seed not in self.targets:  # then it was trained to its end
            assert run.result is not None
            self.targets[seed], self.run_seconds = run.result, run.end.seconds
        return run.reached_at(self.metric, self.targets[seed])

    def _run(self, base: tuple[Choice, ...], choice: Choice | None, seed: int) -> EvaluatedRun:
        """choice: None for the base itself. Raises ArmFailed."""
        plan = plan_of(base if choice is None else _joined(base, choice))
        name = "the plan without them" if choice is None else str(choice)
        what = f"time to the target, seed {seed}: {name}"

        def progress(steps: int) -> None:
            left = (self._runs_left - steps / max(self.steps, 1)) * self.run_seconds
            self.log.report(Doing(what=what, done=steps, whole=self.steps, seconds_left=max(left, 0.0)))

        target = self.targets.get(seed)
        run = partial(evaluated_run, self.arms, plan, self.metric, seed, target, progress, called=name)
        try:
            return self.arms.other_programs.undisturbed(run)
        finally:
            self._runs_left -= 1

    def _add(self, record: Reached) -> None:
        self.log.keep(record)
        self.log.add(Tried(choice=record.choice, on=record.on, verdict=verdict(record), reason=record.sentence))

    def _add_failure(self, choice: Choice, base: tuple[Choice, ...], failure: ArmFailed) -> None:
        self.log.add(Tried(choice=choice, on=base, verdict="failed", reason=failure.reason))


def _joined(base: tuple[Choice, ...], choice: Choice) -> tuple[Choice, ...]:
    return with_choice(base, choice) or base


def _skip(log: SearchLog, choices: Iterable[Choice], base: tuple[Choice, ...], reason: str) -> None:
    log.skip([(choice, reason) for choice in choices], base)
