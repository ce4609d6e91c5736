"""How long runs take to a target, and what pairs of them say of a choice.

Every run has a process of its own: one that happens to be slower is so for as long as it lives, which is then in the
spread of the runs, and is not mistaken for a gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from hasten.facts.choice import Choice, Speedup
from hasten.facts.formatting import three_digits
from hasten.facts.plan import Plan
from hasten.facts.trials import Reached
from hasten.measure.paired_timing import early_speedup
from hasten.training.evaluation.stopping import at_least_as_good
from hasten.tune.proof.paired_runs import pieces
from hasten.tune.search.objective import WORTH_SEEING, is_gain
from hasten.tune.trials.arms import Arms


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
        return f"it never reached {target} from seed {last.seed}, where the plan without it ends"
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
