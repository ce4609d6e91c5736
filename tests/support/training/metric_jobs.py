"""Runs that are judged by metrics of all kinds; a module of its own, so that started processes can import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

import hasten
from hasten.entry import prepare
from hasten.facts.plan import make_plan
from hasten.training.loop import train_run
from support.parallel.pipeline_jobs import job_of
from support.parallel.tensor_models import WORDS
from support.training.collected_events import Collected


def hits_of(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction.argmax(-1) == target).double()


class OwnAccuracy:
    """Of nobody's base class."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.hits, self.seen = 0.0, 0

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.hits += float(hits_of(prediction, target).sum())
        self.seen += len(target)

    def compute(self) -> float:
        return self.hits / max(self.seen, 1)


class InOrder(OwnAccuracy):
    """In which what was seen last weighs most."""

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.seen = 1
        for each in prediction.gather(-1, target[:, None]).flatten().tolist():
            self.hits = 0.9 * self.hits + each


class Holding(OwnAccuracy):
    """A metric of torchmetrics where nobody finds it."""

    def reset(self) -> None:
        self.held = [SumMetric()]

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.held[0].update(hits_of(prediction, target))

    def compute(self) -> Tensor:
        return self.held[0].compute()


class WithoutStates(Metric):
    hits, seen = 0.0, 0

    def reset(self) -> None:
        super().reset()
        self.hits, self.seen = 0.0, 0

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.hits += float(hits_of(prediction, target).sum())
        self.seen += len(target)

    def compute(self) -> Tensor:
        return torch.tensor(self.hits / self.seen, dtype=torch.float64)


class MeanOfMeans(Metric):
    """Which torchmetrics averages over ranks, whatever each of them has seen; `seen` is no state."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="mean")
        self.seen = 0

    def reset(self) -> None:
        super().reset()
        self.seen = 0

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.seen += len(target)
        self.mean = self.mean + (hits_of(prediction, target) - self.mean).sum() / self.seen

    def compute(self) -> Tensor:
        return self.mean


def weighted_by_order(prediction: Tensor, target: Tensor) -> float:
    hits = hits_of(prediction, target)
    return (hits * torch.arange(1, len(hits) + 1)).mean().item()


def metrics() -> dict[str, Any]:
    return {
        "function": weighted_by_order,
        "own": OwnAccuracy(),
        "in order": InOrder(),
        "merged": MulticlassAccuracy(WORDS, average="micro"),
        "holding": Holding(),
        "without states": WithoutStates(),
        "mean of means": MeanOfMeans(),
        "lists": MulticlassAUROC(WORDS),
        "computed of others": MulticlassAccuracy(WORDS, average="micro") * 2,
        "not to be merged": MulticlassAccuracy(WORDS, average="micro", sync_on_compute=False),
    }


def judged(choices: Mapping[str, Any], samples: int) -> list[dict[str, float]]:
    """What each evaluation of a run on so many samples gave."""
    valid: Any = job_of().valid
    valid = tuple(each[:samples] for each in valid)
    with prepare(job_of(metrics=metrics(), valid=valid), make_plan(evaluation_batch=2, **choices)) as run:
        results = [dict(run.evaluate().results)]
        for batch in run.epoch_batches():
            run.step(batch)
        return [*results, dict(run.evaluate().results)]


class EachItsOwn(OwnAccuracy):
    """Falls on each rank from another evaluation on."""

    evaluations = 0

    def compute(self) -> float:
        self.evaluations += 1
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        return float(self.evaluations if self.evaluations < rank + 2 else 0)


def stopped_by(metric: str, kept_by: str | None = None) -> tuple[int, int]:
    """The step that early stopping ends a run with, of which each rank sees other samples; and the step kept."""
    judges = {"own": OwnAccuracy(), "each its own": EachItsOwn()}
    stop = hasten.EarlyStopping(metric, patience=2, mode="max")
    keep = None if kept_by is None else hasten.Best(kept_by, mode="max")
    with prepare(job_of(metrics=judges, stop=stop, keep=keep, epochs=30)) as run:
        return run.steps, train_run(run, Collected()).kept_step
