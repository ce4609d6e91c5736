"""Runs whose ranks hold a model one behind the other; a module of its own, so that started processes can import it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.entry import prepare
from hasten.errors import HastenError
from hasten.facts.job import Loss
from hasten.facts.plan import make_plan
from support.parallel.pipeline_models import MODELS
from support.parallel.tensor_models import LENGTH, WORDS
from support.ranks import word_jobs
from support.ranks.word_jobs import gone_on_from, job_on_words, loss


def penalized(model: nn.Module, batch: Any) -> Loss:
    found = loss(model, batch)
    return Loss(found.total + sum(each.square().sum() for each in model.parameters()), found.count)


def with_auxiliary(model: nn.Module, batch: Any) -> Loss:
    found = loss(model, batch)
    return Loss(found.total, found.count, auxiliary=found.total / 10)


def mean(model: nn.Module, batch: Any) -> Tensor:
    words, following = batch
    return functional.cross_entropy(model(words).flatten(0, 1), following.flatten())


LOSSES = {each.__name__: each for each in (loss, penalized, with_auxiliary, mean)}


def job_of(model: str = "GPT", kind: str = "loss", **changes: Any) -> hasten.Job:
    from torchmetrics.classification import MulticlassAccuracy

    fields: dict[str, Any] = {
        "loss": LOSSES[kind],
        "batch_size": 8,
        "epochs": 2,
        "metrics": {"accuracy": MulticlassAccuracy(WORDS)} if kind == "loss" else {},
    }
    return job_on_words(MODELS[model], WORDS, LENGTH, **(fields | changes))


def trained(choices: Mapping[str, Any], model: str = "GPT", kind: str = "loss", **changes: Any) -> dict[str, Any]:
    return word_jobs.trained(job_of(model, kind, **changes), choices)


def trained_with_average(
    choices: Mapping[str, Any], model: str = "GPT", changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return trained(choices, model, average=hasten.ExponentialAverage(0.9), **(changes or {}))


def masks(choices: Mapping[str, Any]) -> list[list[list[int]]]:
    """Which words this rank has hidden, at random, in each microbatch of a run and in each batch of its evaluation; and
    what it has drawn behind the model."""
    seen, behind = {True: list[list[int]](), False: list[list[int]]()}, list[int]()

    def masked(model: nn.Module, batch: Any) -> Loss:
        words, _ = batch
        hidden = torch.rand(words.shape) < 0.3
        if torch.is_grad_enabled() or not model.training:
            seen[torch.is_grad_enabled()].append(hidden.flatten().tolist())
        each = functional.cross_entropy(model(words * ~hidden).flatten(0, 1), words.flatten(), reduction="none")
        behind.append(int(1e6 * torch.rand(())))
        return Loss((each * hidden.flatten()).sum(), hidden.sum())

    with prepare(job_of("Dropping", loss=masked, metrics={}), make_plan(**choices)) as run:
        behind.clear()  # what it has drawn where it was looked at
        for batch in run.epoch_batches():
            run.step(batch)
        run.evaluate()
    return [seen[True], seen[False], behind]


def trained_in_dozens(choices: Mapping[str, Any]) -> dict[str, Any]:
    return trained(choices, batch_size=12)


def trained_by_the_largest(choices: Mapping[str, Any]) -> dict[str, Any]:
    return trained(choices | {"clipping": (0.05, {"norm_type": math.inf})})


def trained_from_the_start(choices: Mapping[str, Any]) -> dict[str, Any]:
    """By an optimizer that has a state before its first step."""
    return trained(choices, optimizer=lambda parameters: torch.optim.Adagrad(parameters, initial_accumulator_value=0.1))


def cut_and_gone_on(before: Mapping[str, Any], after: Mapping[str, Any], **changes: Any) -> dict[str, Tensor]:
    average = hasten.ExponentialAverage(0.9)
    return gone_on_from(3, lambda: job_of(average=average, **changes), before, after)


def skipped_alike() -> list[Any]:
    return word_jobs.skipped_alike(job_of(clip_norm=None), {"pipeline": 2}, "blocks.3.mix.weight")


def noticed(choices: Mapping[str, Any], model: str = "GPT") -> list[str]:
    with prepare(job_of(model), make_plan(**choices)) as run:
        return run.notices


def refused(choices: Mapping[str, Any], model: str = "GPT", kind: str = "loss", **changes: Any) -> str:
    try:
        with prepare(job_of(model, kind, **changes), make_plan(**choices)):
            return ""
    except HastenError as error:
        return str(error)


def all_refused(cases: Sequence[tuple[Mapping[str, Any], str, str]]) -> list[str]:
    return [refused(*case) for case in cases]
