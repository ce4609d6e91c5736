"""What pairs of runs, the baseline's and the planned one's from the same seeds, say of the plan's loss.

A run that fails always counts: where the planned run alone has become NaN, that is harm, whatever the other pairs say.
Where the baseline fails, or the plan fails for another reason, nothing can be said of the loss (trap 51).

A whole run is judged by a result of its evaluation, the loss or a metric; without valid data by the mean of the last
tenth of its training losses. A short run (`paired_curves`) is judged by the mean training loss of its last half, as
both arms see the same batches. Its harms are shares of the middle loss of the first half: in shares of itself, a loss
that falls to a tenth would make harm of every step that a run is behind. It never shows that there is no harm.

Both runs of a pair have the same first weights and the same order of samples. Which of them is trained first changes
from pair to pair. Each run has a process of its own, so one that fails fails alone, and a device needs no more memory
than for the job itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from hasten.errors import InvalidMeasurement, Misconfigured
from hasten.facts.formatting import did_you_mean
from hasten.facts.plan import Plan
from hasten.facts.trials import Curves, Numbers
from hasten.measure.loss_equivalence import ERROR_RATE, LEAST_PAIRS, Criterion, Judgement, Verdict, final_values, judge
from hasten.tuning.proof.first_step import beyond_rounding
from hasten.tuning.trials.arms import Arm, Arms
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome

PLAIN, PLANNED = "plain", "planned"
PIECE_SECONDS = 1.0  # of training between two answers of an arm, so that progress can be shown

Watch = Callable[[int, int], None]
"""(optimizer steps done, of all runs), as often as an arm answers; of 0 where the data does not say how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """steps: of the whole run, None where the data does not say; seed: the job's; metrics: of an evaluation -> whether
    higher is better, None where the metric does not say; none without valid data."""

    steps: int | None
    seed: int
    metrics: Mapping[str, bool | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """first_step: its loss and the norm of its gradient, before any update and before it is clipped; of a job, and
    where nothing called backward, its loss alone."""

    losses: Numbers  # the mean of every optimizer step
    results: Mapping[str, float]  # of the evaluation that counts; empty where there was none
    first_step: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    seed: int
    plain: Trained | ArmFailed
    planned: Trained | ArmFailed

    @property
    def failed(self) -> bool:
        return isinstance(self.plain, ArmFailed) or isinstance(self.planned, ArmFailed)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLength:
    """steps: to take, None for the whole planned run; whole: as many as that is, None where the data does not say;
    metric: that the evaluation at the end must give, None for no evaluation."""

    steps: int | None
    whole: int | None
    metric: str | None


def trained(side: Trained | ArmFailed) -> Trained:
    """Raises the ArmFailed that came instead."""
    if isinstance(side, ArmFailed):
        raise side
    return side


def planned_run(arms: Arms) -> PlannedRun:
    """Raises ArmFailed."""
    with arms.start(PLAIN, Plan()) as arm:
        return PlannedRun(**arm.ask("planned run"))


def pieces(arm: Arm, **asked: Any) -> Iterator[dict[str, Any]]:
    """The answers of an arm that trains one run, see training_runs.train; the last one has results.

    Raises ArmFailed, also for a run without a step."""
    answer = arm.ask("train", seconds=PIECE_SECONDS, **asked)
    while answer["results"] is None:
        yield answer
        answer = arm.ask("train on", seconds=PIECE_SECONDS)
    if not answer["steps"]:
        raise ArmFailed(arm.name, Outcome.NOTHING_RAN, "no optimizer step was taken")
    yield answer


def trained_in(arm: Arm, seed: int, length: RunLength, progress: Callable[[int], None]) -> Trained:
    """progress: receives the optimizer steps done. Raises ArmFailed."""
    losses, answer = list[float](), dict[str, Any]()
    for answer in pieces(arm, seed=seed, steps=length.steps, metric=length.metric):
        losses += answer["losses"]
        progress(len(losses))
    first_step = {"loss": losses[0], **answer["first_step"]}
    return Trained(losses=tuple(losses), results=answer["results"], first_step=first_step)


def trained_pairs(arms: Arms, plan: Plan, seeds: Sequence[int], length: RunLength, watch: Watch) -> Iterator[Pair]:
    """One after the other, up to one that fails."""
    run_steps = length.whole or 0
    whole = 2 * len(seeds) * run_steps
    for number, seed in enumerate(seeds):
        found: dict[str, Trained | ArmFailed] = {}
        sides = [(PLAIN, Plan()), (PLANNED, plan)]
        for name, of_side in sides if number % 2 == 0 else reversed(sides):
            before = (2 * number + len(found)) * run_steps

            def progress(steps: int, before: int = before) -> None:
                watch(before + steps, whole)

            try:
                with arms.start(name, of_side) as arm:
                    found[name] = trained_in(arm, seed, length, progress)
            except ArmFailed as failure:
                found[name] = failure
            watch(before + run_steps, whole)
        pair = Pair(seed=seed, plain=found[PLAIN], planned=found[PLANNED])
        yield pair
        if pair.failed:
            return


TRAINING = "training loss"  # the metric of a whole run where there is no valid data
EARLY = "early training loss"  # that of a short run, in shares of the loss on its way
LONGEST_SECONDS = 3600.0  # that an arm may be silent: while it builds the job, or is in one step or evaluation
SHORT_MARGIN = 0.01
RARE = 0.01  # error rate of the second stage of short runs


@dataclass(frozen=True, kw_only=True, slots=True)
class LossProof:
    """verdict: "failed" where an arm failed in a way that says nothing of the loss; `failure` is then that arm's.
    judgement: None where an arm failed, where too few pairs were trained, or where they cannot be judged, as the
    sentence then says. wanted: pairs that were asked for; interrupt: that ended the training before all of them."""

    criterion: Criterion
    pairs: tuple[Pair, ...]
    wanted: int
    verdict: Verdict | Literal["failed"]
    judgement: Judgement | None
    sentence: str
    failure: ArmFailed | None = None
    interrupt: KeyboardInterrupt | None = None

    @property
    def interrupted(self) -> bool:
        return self.interrupt is not None


def prove_loss(
    arms: Arms,
    plan: Plan,
    *,
    pairs: int = 5,
    margin: float = 0.005,
    metric: str = "loss",
    steps: int | None = None,
    first_seed: int | None = None,
    watch: Watch = lambda done, whole: None,
) -> LossProof:
    """The paired equivalence test of whole runs, or of the first `steps` of them.

    metric: "loss" or one of the job's metrics; without valid data "loss" is the training loss. first_seed: of seeds in
    a row; None for the job's own.

    A KeyboardInterrupt ends the training, and what the finished pairs say is returned; before the first arm is built it
    is raised. Raises ArmFailed when the baseline cannot be built, Misconfigured for fewer than three pairs, and for a
    metric that the job has not or that does not say whether higher is better.
    """
    _refuse_few(pairs)
    run = planned_run(arms)
    criterion = criterion_of(run, metric, margin)
    seeds = range(run.seed if first_seed is None else first_seed, 2**63)[:pairs]
    whole = run.steps if steps is None else min(steps, run.steps or steps)
    evaluated = None if criterion.metric == TRAINING else criterion.metric
    length = RunLength(steps=steps, whole=whole, metric=evaluated)
    found, interrupt = list[Pair](), None
    try:
        for pair in trained_pairs(arms, plan, seeds, length, watch):
            found.append(pair)
    except KeyboardInterrupt as error:
        interrupt = error
    return judged(found, criterion, len(seeds), interrupt)


def paired_curves(
    arms: Arms,
    plan: Plan,
    seeds: Sequence[int],
    steps: int,
    watch: Watch = lambda done, whole: None,
) -> Curves:
    """The first `steps` training losses of both arms from each seed, judged. Its sentence says what could have been
    seen. A first step that is another one is harm, wherever the losses go.

    A plan is rejected in two stages: where the seeds call it harmed or better, as many new ones are trained, and all
    together must say the same with more certainty. Honest plans that only draw other random numbers are rejected by
    three seeds in up to 10 % of searches, and by both stages in 1 %. A run that became NaN needs no second stage.

    Raises ArmFailed when an arm fails for another reason than a loss that is not finite, or when the baseline does;
    InvalidMeasurement for pairs that cannot be judged; Misconfigured for fewer than three seeds.
    """
    _refuse_few(len(seeds))
    length = RunLength(steps=steps, whole=steps, metric=None)
    found = [*trained_pairs(arms, plan, seeds, length, watch)]
    first = _early_curves(found, steps, ERROR_RATE)
    if first.verdict not in ("harmed", "better") or found[-1].failed:
        return first
    more = range(max(seeds) + 1, 2**63)[: len(seeds)]
    found += trained_pairs(arms, plan, more, length, watch)
    both = _early_curves(found, steps, RARE)
    if both.verdict == first.verdict or found[-1].failed:
        return both
    once = f"; the first {len(seeds)} pairs alone were {first.verdict}"
    return replace(both, verdict="inconclusive", sentence=f"{both.sentence}{once}")


def _early_curves(found: Sequence[Pair], steps: int, error_rate: float) -> Curves:
    """Raises what paired_curves raises."""
    proof = judged(found, Criterion(metric=EARLY, margin=SHORT_MARGIN), len(found), error_rate=error_rate)
    if proof.failure is not None:
        raise proof.failure
    if proof.judgement is None and proof.verdict != "harmed":
        raise InvalidMeasurement(proof.sentence, where="losses", fix="`hasten prove loss` trains whole runs")
    curves = curves_of(proof, f"the first {steps} steps: {proof.sentence}")
    other = _other_first_step([pair for pair in found if not pair.failed])
    return replace(curves, verdict="harmed", sentence=other) if other else curves


def _other_first_step(pairs: Sequence[Pair]) -> str:
    """How the plan's differs from the baseline's, "" where it does not. pairs: whole ones."""
    steps = [(trained(pair.plain).first_step, trained(pair.planned).first_step) for pair in pairs]
    for name in dict.fromkeys(name for plain, _ in steps for name in plain):
        numbers = [(plain[name], planned[name]) for plain, planned in steps if name in plain and name in planned]
        if other := beyond_rounding(f"the {name}", numbers):
            return other
    return ""


def curves_of(proof: LossProof, sentence: str) -> Curves:
    """The training losses of all whole pairs, with what they say, as a record."""
    whole = [pair for pair in proof.pairs if not pair.failed]
    return Curves(
        seeds=tuple(pair.seed for pair in whole),
        plain=tuple(trained(pair.plain).losses for pair in whole),
        planned=tuple(trained(pair.planned).losses for pair in whole),
        verdict=proof.verdict,
        sentence=sentence,
        unharmed=proof.judgement is not None and proof.judgement.unharmed,
    )


def criterion_of(run: PlannedRun, metric: str, margin: float) -> Criterion:
    """What is judged, fixed before anything is trained."""
    if metric == "loss" and not run.metrics:
        return Criterion(metric=TRAINING, margin=margin)
    if metric not in run.metrics:
        known = did_you_mean(metric, list(run.metrics)) if run.metrics else "set Job.valid and Job.metrics"
        raise Misconfigured(f'the job has no metric "{metric}"', where="--metric", fix=known)
    higher = run.metrics[metric]
    if higher is None:
        what = f'"{metric}" does not say whether higher is better'
        raise Misconfigured(what, where="--metric", fix="judge the loss, or set higher_is_better in the metric")
    return Criterion(metric=metric, margin=margin, higher_is_better=higher)


# ── judging ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def judged(
    pairs: Sequence[Pair],
    criterion: Criterion,
    wanted: int,
    interrupt: KeyboardInterrupt | None = None,
    *,
    error_rate: float = ERROR_RATE,
) -> LossProof:
    """What these pairs say."""
    verdict, judgement, failure = "inconclusive", None, None
    if broken := next((pair for pair in pairs if pair.failed), None):
        verdict, sentence, failure = _of_failure(broken)
    elif len(pairs) < LEAST_PAIRS:
        sentence = f"{len(pairs)} of {wanted} pairs were trained, too few for a result: {LEAST_PAIRS} are needed"
    else:
        try:
            _refuse_equal_seeds(pairs)
            scale = _scale_of(pairs, criterion)
            judgement = judge(*values_of(pairs, criterion), criterion, scale, error_rate)
            verdict, sentence = judgement.verdict, judgement.sentence
        except InvalidMeasurement as error:  # what was trained is not lost with it
            sentence = f"these pairs cannot be judged: {error.where}: {error.what}; {error.fix}"
        if len(pairs) < wanted:
            sentence += f"; ended after {len(pairs)} of {wanted} pairs, and a test that ends early errs more often"
    return LossProof(
        criterion=criterion,
        pairs=tuple(pairs),
        wanted=wanted,
        verdict=verdict,
        judgement=judgement,
        sentence=sentence,
        failure=failure,
        interrupt=interrupt,
    )


def value_of(run: Trained, criterion: Criterion) -> float:
    """What a run is judged by."""
    if criterion.metric == TRAINING:
        return final_values([run.losses], [run.losses], metric=TRAINING)[0][0]
    if criterion.metric == EARLY:
        late = run.losses[len(run.losses) // 2 :]
        return math.fsum(late) / len(late)
    return run.results[criterion.metric]


def _scale_of(pairs: Sequence[Pair], criterion: Criterion) -> float | None:
    """What the harms of short runs are shares of: the middle loss of their first halves, or the one that is judged
    where it is larger. None for whole runs."""
    if criterion.metric != EARLY:
        return None
    runs = [trained(pair.plain) for pair in pairs]
    before = [abs(loss) for run in runs for loss in run.losses[: len(run.losses) // 2]]
    judged_mean = abs(math.fsum(value_of(run, criterion) for run in runs)) / len(runs)
    return max(median(before), judged_mean) or None if before else None


def values_of(pairs: Sequence[Pair], criterion: Criterion) -> tuple[Numbers, Numbers]:
    """What all runs of either arm are judged by, where none has failed."""
    runs = [(trained(pair.plain), trained(pair.planned)) for pair in pairs]
    if criterion.metric in (TRAINING, EARLY):  # losses can be compared where both took as many steps
        final_values([plain.losses for plain, _ in runs], [planned.losses for _, planned in runs], metric=TRAINING)
    plain, planned = zip(*((value_of(a, criterion), value_of(b, criterion)) for a, b in runs), strict=True)
    return plain, planned


def _refuse_few(pairs: int) -> None:
    if pairs < LEAST_PAIRS:
        what = f"{pairs} pairs are too few for a confidence interval"
        raise Misconfigured(what, where="pairs", fix=f"train {LEAST_PAIRS} at least")


def _of_failure(pair: Pair) -> tuple[Verdict | Literal["failed"], str, ArmFailed | None]:
    plain, planned = pair.plain, pair.planned
    if isinstance(plain, ArmFailed):
        return "failed", f"the baseline failed with seed {pair.seed}, so nothing can be compared: {plain}", plain
    assert isinstance(planned, ArmFailed)
    if planned.outcome is not Outcome.NON_FINITE:
        return "failed", f"the plan failed with seed {pair.seed}, which says nothing about its loss: {planned}", planned
    harm = f"with seed {pair.seed} the planned run became {planned.outcome.value} ({planned.what})"
    return "harmed", f"the loss is harmed: {harm}, but the baseline finished", None


def _refuse_equal_seeds(pairs: Sequence[Pair]) -> None:
    seen: dict[Numbers, int] = {}
    for pair in pairs:
        losses = trained(pair.plain).losses
        if (other := seen.setdefault(losses, pair.seed)) != pair.seed:
            raise InvalidMeasurement(
                f"seeds {other} and {pair.seed} gave bit-identical losses, so the runs are not independent",
                where="plain",
                fix="set no seed in the job's own functions: Job.seed sets the weights and the order",
            )
