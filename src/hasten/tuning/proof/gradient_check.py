"""Judges the gradients and updates of a plan's optimizer steps, in the process of an arm.

The baseline goes first (`keep_references`). For eight batches it keeps its weights, its gradients and those of a
float64 model on the same batch. A plan's arm takes the same steps from the same weights and is judged beside both
(`judge_gradients_of`). The worst of three counts:

* the gradient that the optimizers get, clipped as the job clips;
* where the job clips by norm, the norm before clipping: clipping hides a wrong scale;
* the updates of the first three steps, beside the job's own optimizers in float64 that get the same gradient and the
  baseline's rates: momentum and a warm-up that begins at 0 count by then.

Every dropout layer drops with a probability of 0. A model that draws random numbers in another way has no gradient to
compare; one step under two seeds finds that. Buffers are not judged, nor is what clip_value removes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.errors import InvalidMeasurement
from hasten.facts.job import Job
from hasten.measure.float64_reference import dense, longest_sum, nearby_gradients, reference_gradients
from hasten.measure.gradient_error import (
    BOUND,
    GradientJudge,
    StepGradients,
    UpdateError,
    Verdict,
    judge_updates,
    squared_errors,
)
from hasten.training.failures.as_failure import is_out_of_memory
from hasten.training.weights.tensor_file import read_tensors, write_tensors
from hasten.tuning.proof.optimizer_steps import OptimizerStep, OptimizerSteps, Rates, Tensors, put_state, state_of
from hasten.tuning.trials.trial import Trial

FEWEST = 4  # steps, where they take less than MOST_SECONDS
SECONDS, MOST_SECONDS = 6.0, 60.0  # of keeping references
BYTES = 4 << 30  # of references on disk
UPDATES = 3  # steps whose updates are judged
NEIGHBOURS = 2  # weights near the baseline's, in every step
SAME = 1e-4  # the relative distance of two gradients of one step that a device may cause by itself
OTHER_GRADIENT = 0.05  # the baseline's relative error from which on it is not rounding
NORM = "the norm before clipping"

# ── the baseline ────────────────────────────────────────────────────────────────────────────────────────────────────


def keep_references(trial: Trial, folder: str, first: int, steps: int) -> dict[str, Any]:
    """A request to an arm with the empty plan: fill the folder with `steps` steps from step `first` on, or with fewer.
    The arm cannot be used for anything else afterwards.

    refused: why no gradient of this job can be judged, or empty; steps: how many were kept; terms: of the longest sum;
    rates, norms: of every step, see OptimizerStep; updates: parameter name -> UpdateError; nearby: see GradientJudge.
    """
    try:
        return {"refused": "", "first": first, **_References(trial, Path(folder), first).keep(steps)}
    except InvalidMeasurement as error:
        return {"refused": error.what}


class _References:
    def __init__(self, trial: Trial, folder: Path, first: int) -> None:
        self._job, self._run, self._folder, self._first = trial.job, trial.run, folder, first
        self._steps = OptimizerSteps(self._run)
        self._state, self._truth, self._terms = dict[str, Tensor](), dict[str, Tensor](), 0
        self._nearby = dict[str, float]()

    def keep(self, most: int) -> dict[str, Any]:
        begin, judge = time.monotonic(), None
        rates, norms, updates = list[Rates](), list[float | None](), dict[str, UpdateError]()
        for position, seen in enumerate(self._steps.steps(self._before, self._first)):
            judge = judge or GradientJudge(terms=self._terms)
            judge.add(StepGradients(plain=seen.gradients, plan=seen.gradients, reference=self._clipped.gradients))
            if position < UPDATES:
                _include(updates, seen.updates(seen.rates))
            rates.append(seen.rates)
            norms.append(seen.norm)
            kept, done = self._write(position, seen.gradients), position + 1
            if done >= most or kept * (done + 1) > BYTES or _too_slow(time.monotonic() - begin, done):
                break
        if judge is None:
            raise InvalidMeasurement("no optimizer step was taken")
        if (share := judge.plain_share) > OTHER_GRADIENT:
            raise InvalidMeasurement(
                f"the job's gradient is {share:.0%} off its float64 reference, more than rounding: its loss draws "
                "random numbers, or casts in a way that float64 cannot reproduce"
            )
        sums = {name: asdict(each) for name, each in updates.items()}
        found = {"rates": rates, "norms": norms, "updates": sums, "nearby": self._nearby}
        return {"steps": len(rates), "terms": self._terms, **found}

    def _before(self, position: int, batch: Any) -> None:
        if not self._run.window_closed:
            raise InvalidMeasurement("the baseline uses microbatches, so there is no full batch to compare with")
        self._state = {name: each.clone() for name, each in state_of(self._run).items()}
        self._truth = self._reference(batch)
        self._clipped = clipped_as(self._job, self._truth)
        if position == 0:
            self._terms = longest_sum(self._run.model, self._job.loss, batch)
            self._refuse_random_numbers(batch)
        for number in range(NEIGHBOURS):
            self._look_nearby(batch, position * NEIGHBOURS + number)

    def _reference(self, batch: Any) -> dict[str, Tensor]:
        """On the run's device, or on the host where that lacks the memory."""
        run = self._run
        try:
            return reference_gradients(run.model, self._job.loss, [batch], run.device)
        except Exception as error:
            if run.device.type == "cpu" or not is_out_of_memory(error):
                raise
        torch.cuda.empty_cache()  # outside the except block, whose traceback keeps the failed step's tensors alive
        return reference_gradients(run.model, self._job.loss, [batch], torch.device("cpu"))

    def _refuse_random_numbers(self, batch: Any) -> None:
        one, other = (
            nearby_gradients(self._run.model, self._job.loss, batch, terms=0, seed=self._job.seed + each)
            for each in range(2)
        )
        if math.sqrt(sum(squared_errors(one, other).values())) > SAME * _norm_of(self._truth):
            raise InvalidMeasurement(
                "its loss draws random numbers outside of dropout layers, so its gradient is not deterministic"
            )

    def _look_nearby(self, batch: Any, seed: int) -> None:
        """Include the squared errors from nearby weights, clipped as far as the true gradient is."""
        found = nearby_gradients(self._run.model, self._job.loss, batch, terms=self._terms, seed=seed)
        errors = squared_errors(found, self._truth)
        errors[NORM] = (
            clipped_as(self._job, {name: dense(each) for name, each in found.items()}).norm - self._clipped.norm
        ) ** 2
        for name, error in errors.items():
            shortened = 1.0 if name == NORM else self._clipped.factor**2
            self._nearby[name] = self._nearby.get(name, 0.0) + error * shortened / NEIGHBOURS

    def _write(self, position: int, plain: Tensors) -> int:
        """The bytes of one step. The reference is kept as its float32 distance from the baseline's gradient, which is
        precise enough."""
        kept = {f"state/{name}": each for name, each in self._state.items()}
        for name, truth in self._truth.items():
            gradient = plain.get(name)
            if gradient is not None:
                dense = gradient if gradient.layout == torch.strided else gradient.to_dense()
                kept[f"plain/{name}"] = gradient = dense.cpu()
                truth = truth - gradient.double()
            kept[f"rest/{name}"] = truth.float()
        write_tensors(_step_file(self._folder, self._first + position), kept)
        return sum(each.nbytes for each in kept.values())


# ── a plan ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def judge_gradients_of(trial: Trial, folder: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """A request to the arm of a plan that has taken no step. kept: what keep_references answered. Afterwards the arm is
    of no use for anything else.

    passes, gradient_error (in multiples, None where it is infinite), bound, reason: of the worst of all that is judged.
    """
    try:
        verdicts = _Judged(trial, Path(folder), kept).verdicts()
    except InvalidMeasurement as error:
        return {"passes": False, "gradient_error": None, "bound": BOUND, "reason": error.what}
    worst = max(verdicts, key=lambda verdict: verdict.multiple)
    return {
        "passes": all(verdict.passes for verdict in verdicts),
        "gradient_error": worst.multiple if math.isfinite(worst.multiple) else None,
        "bound": worst.bound,
        "reason": str(worst),
    }


class _Judged:
    def __init__(self, trial: Trial, folder: Path, kept: Mapping[str, Any]) -> None:
        self._job, self._run, self._folder, self._kept = trial.job, trial.run, folder, kept
        self._steps = OptimizerSteps(self._run)
        self._step: dict[str, Tensor] = {}
        self._given, self._norms = (
            GradientJudge(terms=kept["terms"], nearby=kept["nearby"], spares=True) for _ in range(2)
        )
        self._updates = dict[str, UpdateError]()

    def verdicts(self) -> list[Verdict]:
        kept, steps = self._kept, 0
        for seen in self._steps.steps(self._before, kept["first"]):
            self._judge(seen, steps)
            steps += 1
            if steps == kept["steps"]:
                break
        if steps < kept["steps"]:
            raise InvalidMeasurement(f"the plan took only {steps} of the {kept['steps']} optimizer steps to compare")
        of_plain = {name: UpdateError(**each) for name, each in kept["updates"].items()}
        verdicts = [self._given.verdict(), judge_updates(of_plain, self._updates)]
        if self._job.clip_norm is not None:
            verdicts.append(self._norms.verdict())
        return verdicts

    def _judge(self, seen: OptimizerStep, position: int) -> None:
        plain, truth = _part_of(self._step, "plain"), _truth(self._step)
        plan, clipped = self._by_names_of_the_job(seen.gradients, truth), clipped_as(self._job, truth)
        self._given.add(StepGradients(plain=plain, plan=plan, reference=clipped.gradients))
        if self._job.clip_norm is not None:
            norms = (self._kept["norms"][position], seen.norm)
            if None in norms:
                raise InvalidMeasurement("the plan does not clip the gradient's norm, but the job does")
            of_plain, of_plan = ({NORM: torch.tensor([norm])} for norm in norms)
            reference = {NORM: torch.tensor([clipped.norm], dtype=torch.float64)}
            self._norms.add(StepGradients(plain=of_plain, plan=of_plan, reference=reference))
        if position < UPDATES:
            _include(self._updates, seen.updates(self._kept["rates"][position]))

    def _before(self, position: int, batch: Any) -> None:
        self._step = read_tensors(_step_file(self._folder, self._kept["first"] + position))
        state, present = _part_of(self._step, "state"), state_of(self._run)
        present |= {name: each.detach() for name, each in self._run.setup.optimizer.removed.items()}
        for name in _part_of(self._step, "rest"):
            if name not in present:
                raise InvalidMeasurement(f"the plan's model has no {name}, which the job trains")
            if self._kept["first"] == position == 0 and not torch.equal(present[name].cpu(), state[name]):
                raise InvalidMeasurement(
                    f"the plan starts with a different {name} than the baseline: the model ignores Job.seed"
                )
        put_state(self._run, state)

    def _by_names_of_the_job(self, plan: Tensors, truth: Tensors) -> dict[str, Tensor]:
        """What a technique removed from the model is not updated any more, as if its gradient were zero."""
        removed = self._run.setup.optimizer.removed
        return {**plan, **{name: torch.zeros_like(truth[name]) for name in removed if name in truth}}


# ── both ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class Clipped:
    """Float64 gradients as the job clips them; norm: before that was done by norm; factor: what it multiplied by."""

    gradients: Tensors
    norm: float
    factor: float


def clipped_as(job: Job, gradients: Tensors) -> Clipped:
    """By value, then by norm. Source: torch.nn.utils.clip_grads_with_norm_."""
    most = job.clip_value
    if most is not None:
        gradients = {name: each.clamp(-most, most) for name, each in gradients.items()}
    norm, most = _norm_of(gradients), job.clip_norm
    factor = 1.0 if most is None else min(1.0, most / (norm + 1e-6))
    if factor < 1:
        gradients = {name: each * factor for name, each in gradients.items()}
    return Clipped(gradients=gradients, norm=norm, factor=factor)


def _norm_of(gradients: Tensors) -> float:
    return math.sqrt(sum(float(each.square().sum()) for each in gradients.values()))


def _too_slow(seconds: float, done: int) -> bool:
    """Whether one more step of the same length would take too long."""
    after = seconds * (done + 1) / done
    return after > (SECONDS if done >= FEWEST else MOST_SECONDS)


def _include(sums: dict[str, UpdateError], more: Mapping[str, UpdateError]) -> None:
    for name, each in more.items():
        sums[name] = sums.get(name, UpdateError()) + each


def _step_file(folder: Path, step: int) -> Path:
    return folder / f"step-{step}.safetensors"


def _part_of(step: Tensors, part: str) -> dict[str, Tensor]:
    begin = f"{part}/"
    return {name.removeprefix(begin): each for name, each in step.items() if name.startswith(begin)}


def _truth(step: Tensors) -> dict[str, Tensor]:
    plain = _part_of(step, "plain")
    return {
        name: rest.double() + plain[name].double() if name in plain else rest.double()
        for name, rest in _part_of(step, "rest").items()
    }
