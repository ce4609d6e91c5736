"""Judges choices that change what is learned, by the time to the target: the result of the plan without the choice at
the end of its planned run from the same seed. What counts are the seconds to the first evaluation that is as good.

1. One whole run of each choice, from the job's own seed, on top of the plan so far. Those that are no sooner are
   dropped.
2. The soonest runs from five more seeds, in turns with the plan without it. It joins the plan when it reached the
   target from every seed, and was sooner beyond the spread of the five ratios (Student's t). Where it does not, the
   next one runs from these seeds.

Every run has a process of its own: one that happens to be slower is so for as long as it lives, which is then in the
spread of the runs, and is not mistaken for a gain. It is a gain only if the run then ends at the target, so the plan
says that as well (`stop_at`), with the target of the job's own seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple

from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.formatting import three_digits
from hasten.facts.plan import Plan, Speedup
from hasten.facts.trials import Doing, Reached, Tried, is_gain
from hasten.measure.paired_timing import early_speedup
from hasten.training.evaluation.stopping import at_least_as_good
from hasten.tuning.proof.loss_proof import pieces
from hasten.tuning.search.candidates import changes_training, plan_of, with_choice
from hasten.tuning.search.objective import WORTH_SEEING
from hasten.tuning.search.plan_profile import PlanProfile
from hasten.tuning.search.search_log import SearchLog
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetMetric:
    """The result of an evaluation by which the job is judged. refused: why there is none, None where there is."""

    metric: str
    higher_is_better: bool
    refused: str | None = None

    def is_reached(self, value: float, target: float) -> bool:
        return at_least_as_good(value, target, higher_is_better=self.higher_is_better)


class Time(NamedTuple):
    """Of an evaluation within its run."""

    seconds: float
    steps: int

    def __str__(self) -> str:
        return f"{three_digits(self.seconds)} s and {self.steps:.0f} steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatedRun:
    """evaluations: the time and the result of each; result: of the weights that were kept, None for a run that ended at
    a target."""

    evaluations: tuple[tuple[Time, float], ...]
    result: float | None

    @property
    def end(self) -> Time:
        return self.evaluations[-1][0]

    def reached_at(self, metric: TargetMetric, target: float) -> Time | None:
        """Of the first evaluation that was at least as good as the target; None where none was."""
        return next((time for time, value in self.evaluations if metric.is_reached(value, target)), None)


def target_metric(arms: Arms, plan: Plan) -> TargetMetric:
    """Raises ArmFailed where the plan fails, or the job watches a result that does not say which way is better."""
    with arms.start("target metric", plan) as arm:
        return TargetMetric(**arm.ask("target metric"))


def evaluated_run(
    arms: Arms,
    plan: Plan,
    metric: TargetMetric,
    seed: int,
    target: float | None,
    progress: Callable[[int], None],
    *,
    called: str,
) -> EvaluatedRun:
    """Train from a seed until the target is reached; to the end where it is not, or not known. progress: receives the
    optimizer steps done. Raises ArmFailed."""
    evaluations, result = list[tuple[Time, float]](), None
    with arms.start(called, plan) as arm:
        for answer in pieces(arm, seed=seed, steps=None, metric=metric.metric):
            progress(answer["steps"])
            value = answer["evaluated"]
            if value is not None:
                evaluations.append((Time(answer["seconds"], answer["steps"]), value))
            if answer["results"] is not None:
                result = answer["results"][metric.metric]
            elif value is not None and target is not None and metric.is_reached(value, target):
                break
    return EvaluatedRun(evaluations=tuple(evaluations), result=result)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetPair:
    """before, after: when the runs without and with a choice reached the target; None for one that never did."""

    seed: int
    target: float
    before: Time | None
    after: Time | None

    @property
    def ratio(self) -> float | None:
        """How many times sooner it is with the choice; None where one of the runs never reached the target."""
        return self.before.seconds / self.after.seconds if self.before and self.after else None


def reached(choice: Choice, on: tuple[Choice, ...], metric: TargetMetric, pairs: Sequence[TargetPair]) -> Reached:
    """The record of one choice beside the plan without it. It is kept when every run has reached its target and it is
    significantly sooner, which one pair never shows."""
    ratios = [pair.ratio for pair in pairs if pair.ratio is not None]
    speedup = early_speedup(ratios) if len(ratios) == len(pairs) > 1 else None
    before, after = [pair.before for pair in pairs], [pair.after for pair in pairs]
    return Reached(
        choice=choice,
        on=on,
        metric=metric.metric,
        higher_is_better=metric.higher_is_better,
        seeds=tuple(pair.seed for pair in pairs),
        targets=tuple(pair.target for pair in pairs),
        seconds_without=tuple(each and each.seconds for each in before),
        steps_without=tuple(each and each.steps for each in before),
        seconds_with=tuple(each and each.seconds for each in after),
        steps_with=tuple(each and each.steps for each in after),
        speedup=speedup,
        kept=speedup is not None and is_gain(speedup),
        sentence=_sentence(metric, pairs, speedup),
    )


def verdict(record: Reached) -> str:
    """Of a trial: "faster", "no difference" or "slower"."""
    if record.kept:
        return "faster"
    if None in record.seconds_with:
        return "slower"
    if record.speedup is not None:
        return "slower" if record.speedup.high < 1 / WORTH_SEEING else "no difference"
    before, after = record.seconds_without[-1], record.seconds_with[-1]
    return "slower" if before is not None and after is not None and after > before * WORTH_SEEING else "no difference"


def _sentence(metric: TargetMetric, pairs: Sequence[TargetPair], speedup: Speedup | None) -> str:
    last = pairs[-1]
    target = f"{metric.metric} {last.target:.4g}"
    if last.after is None:
        return f"from seed {last.seed} it never reached {target}, the result with which the plan without it ends"
    if last.before is None:
        return f"the plan without it never reached {target} from seed {last.seed}"
    if speedup is None:
        without = f"the plan without it after {last.before}"
        return f"it reached {target} after {last.after}, and {without}, from seed {last.seed} alone"
    after, before = _middle([pair.after for pair in pairs]), _middle([pair.before for pair in pairs])
    return f"{speedup} to the job's own {metric.metric}: in {after} instead of {before} (medians)"


def _middle(times: Sequence[Time | None]) -> Time:
    seconds, steps = zip(*(each for each in times if each is not None), strict=True)
    return Time(median(seconds), median(steps))


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
            for number, choice in enumerate(sooner[:FURTHER], start=1):
                record = self._over_seeds(base, choice)
                if record is not None and record.kept:
                    reason = f"it reached the target sooner, but {choice} even sooner, and a plan has one such choice"
                    _skip(self.log, sooner[number:], base, reason)
                    return TargetGain(choices=(*_joined(base, choice), self._end()), reached=record)
        except ArmFailed as failure:
            _skip(self.log, choices, base, f"the plan without it failed: {failure.reason}")
            raise
        reason = f"it reached the target sooner from one seed; only the {FURTHER} soonest are tried from more"
        _skip(self.log, sooner[FURTHER:], base, reason)
        return None

    def _end(self) -> Choice:
        """The choice that ends the run at the target."""
        option = "at_least" if self.metric.higher_is_better else "at_most"
        target: dict[str, Value] = {option: self.targets[self.first_seed]}
        return Choice(technique="stop_at", value=self.metric.metric, preserves=Preserves.TRAINING, options=target)

    def _sooner(self, base: tuple[Choice, ...], choices: Sequence[Choice]) -> list[Choice]:
        """Those that reach the target of the job's own seed sooner, the soonest first. Raises ArmFailed when the base
        fails."""
        seed = self.first_seed
        self._runs_left = 1 + len(choices) + 2 * PAIRS
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

    def _over_seeds(self, base: tuple[Choice, ...], choice: Choice) -> Reached | None:
        """None where the choice fails. Raises ArmFailed when the base fails."""
        pairs, self._runs_left = list[TargetPair](), 2 * PAIRS
        for number in range(PAIRS):
            seed, runs = self.first_seed + 1 + number, list[EvaluatedRun]()
            order = (None, choice) if number % 2 == 0 else (choice, None)
            for each in order:
                try:
                    runs.append(self._run(base, each, seed))
                except ArmFailed as failure:
                    if each is None:
                        raise
                    self._add_failure(choice, base, failure)
                    return None
            plain, run = runs if order[0] is None else reversed(runs)
            pairs.append(self._pair(self._time_of_base(plain, seed), run, seed))
            if pairs[-1].ratio is None:
                break
        record = reached(choice, base, self.metric, pairs)
        self._add(record)
        return record

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
