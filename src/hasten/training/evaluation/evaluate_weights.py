"""A job's results with the weights of a file. No optimizer is built, and no sample of the other data is read."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from hasten.errors import JobError, Misconfigured
from hasten.facts.job import Job, describe, is_whole
from hasten.facts.plan import Plan
from hasten.parallel.strategy import Single
from hasten.techniques.common.batch_split import changed_by_loss
from hasten.training.batches.evaluation_data import EvaluationData
from hasten.training.batches.training_data import BatchPlacement
from hasten.training.evaluate import Batches, Evaluation, evaluator_of
from hasten.training.setup.apply_plan import with_places
from hasten.training.setup.prepared_job import prepare_job
from hasten.training.setup.process_options import process_options
from hasten.training.weights.initial_weights import InitialWeights

Watch = Callable[[int, int], object]
"""(done, whole)"""
Data = Literal["valid", "train"]
DATA: tuple[Data, ...] = ("valid", "train")
_READ_ALL = ("cache", "in_memory")  # techniques that read the whole training data before the first step


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluatedWeights:
    """samples: None for data without a length. notices: of the plan and the data, for the user."""

    evaluation: Evaluation
    device: torch.device
    samples: int | None
    notices: tuple[str, ...]


def check_data(data: str, where: str) -> None:
    """Raises Misconfigured. where: the option."""
    if data not in DATA:
        raise Misconfigured(f"is {data!r}", where=where, fix=f"write {' or '.join(DATA)}")


def evaluate_weights(
    job: Job,
    weights: Path,
    plan: Plan | None,
    data: str = "valid",
    batch_size: int | None = None,
    watch: Watch = lambda done, whole: None,
) -> EvaluatedWeights:
    """Evaluate on one device, as a run of this job and plan does. watch: receives the samples that are done, and all,
    where the data says how many it has. Raises what training raises."""
    check_data(data, "data")
    if batch_size is not None and not is_whole(batch_size):
        raise Misconfigured(
            f"is {describe(batch_size)}", where="batch_size", fix="write the samples in a batch: 1 or more"
        )
    if data == "valid" and job.valid is None:
        raise JobError("valid", "is not given", "give the data to evaluate on: valid=…, or evaluate the training data")
    plan = plan or Plan()
    plan = replace(plan, choices=tuple(each for each in plan.choices if each.choice.technique not in _READ_ALL))
    with ExitStack() as stack:
        with with_places(plan):
            started = InitialWeights(weights).within(job)
            prepared = prepare_job(started, plan, lambda options: stack.enter_context(process_options(options)))
        setup, source = prepared.setup, prepared.train if data == "train" else prepared.valid
        assert source is not None
        if setup.compile is not None:
            from hasten.training.setup.torch_compiling import compile_model

            stack.callback(compile_model(setup.model, setup.compile).stop)
        strategy = Single(setup.device)
        model, loss = strategy.prepare(setup.model, job.loss)
        placement = BatchPlacement(setup.device, setup.loader, setup.step.memory_format)
        batches = EvaluationData(source, setup.loader, job.seed, placement, strategy.grid.data, equally_many=False)
        size = batch_size or setup.evaluation.batch_size or source.batch_size or prepared.batch_size
        notices = [*setup.notices, *batches.check_before_start(size)]
        if changed := changed_by_loss(job):
            notices.append(f"{', '.join(changed)} is as the job builds it: it is not in a file of weights")
        watched = _watched(batches, watch, source.count)
        evaluator = evaluator_of(setup, model, loss, strategy, watched, size, data)
        return EvaluatedWeights(
            evaluation=evaluator(), device=setup.device, samples=source.count, notices=(*dict.fromkeys(notices),)
        )


def _watched(batches: Batches, watch: Watch, count: int | None) -> Batches:
    def watched(batch_size: int) -> Generator[tuple[Any, int]]:
        done = 0
        with closing(batches(batch_size)) as whole:
            for batch, samples in whole:
                yield batch, samples
                done += samples
                watch(done, count or 0)

    return batches if count is None else watched
