"""Runs whose ranks hold layers together; a module of its own, so that started processes can import it by name."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

import hasten
from hasten.checkpoint.store import Store
from hasten.entry import prepare
from hasten.errors import HastenError
from hasten.facts.job import Loss
from hasten.facts.plan import make_plan
from hasten.parallel.collectives import present_ranks
from hasten.parallel.launch.process_group import from_the_leader
from hasten.parallel.sharding import Split
from hasten.training.state.sharded_state import whole_state
from support.parallel.tensor_models import LENGTH, MODELS, WORDS
from support.ranks import word_jobs
from support.ranks.word_jobs import job_on_words, loss


def word_job(model: str = "gpt", **changes: Any) -> hasten.Job:
    return job_on_words(MODELS[model], WORDS, LENGTH, **changes)


def trained(choices: Mapping[str, Any], model: str = "gpt", **changes: Any) -> dict[str, Any]:
    return word_jobs.trained(word_job(model, **changes), choices)


def trained_for_long(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Fifty-two steps, the last of each epoch short, with a metric that is counted over samples."""
    return trained(choices, epochs=13, metrics={"accuracy": MulticlassAccuracy(WORDS, average="micro")})


def trained_with_average(choices: Mapping[str, Any]) -> dict[str, Any]:
    return trained(choices, average=hasten.ExponentialAverage(0.9))


def trained_by_the_largest(choices: Mapping[str, Any]) -> dict[str, Any]:
    return trained(choices | {"clipping": (0.05, {"norm_type": math.inf})})


def skipped_alike() -> list[Any]:
    return word_jobs.skipped_alike(word_job(clip_norm=None), {"tensor": 2}, "blocks.0.mix.weight")


def held_alike(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Tensor]:
    """The weights that each rank holds whole, of a run with dropout that goes on by another plan."""
    with prepare(word_job("dropping"), make_plan(**before)) as run:
        for batch in run.batches():
            run.step(batch)
            if run.steps == 5:
                break
        state = whole_state(run.state_dict(), run.built.strategy.sharding, run.ranks)
    state = from_the_leader(lambda: state)  # who alone saves
    with prepare(word_job("dropping"), make_plan(**after)) as run:
        run.load_state_dict(state)
        for batch in run.batches():
            run.step(batch)
        splits = run.built.strategy.sharding.splits
        assert splits
        return [each.detach() for name, each in run.model.named_parameters() if name not in splits]


def copied_teacher() -> list[Any]:
    """What a copy of a model with divided layers gives after the model has moved: what it gave before."""
    with prepare(word_job(), make_plan(tensor=2)) as run:
        words = torch.arange(LENGTH)[None]
        teacher = copy.deepcopy(run.model)
        before = teacher(words).detach()
        for batch in run.batches():
            run.step(batch)
        return [torch.equal(teacher(words).detach(), before), torch.equal(run.model(words).detach(), before)]


def smoothed(model: nn.Module, batch: Any) -> Tensor:
    words, following = batch
    return functional.cross_entropy(model(words).transpose(1, 2), following, label_smoothing=0.1)


def squared(model: nn.Module, batch: Any) -> Tensor:
    """Of which torch computes the value of scores in shares, and another gradient."""
    return model(batch[0]).log_softmax(-1).square().mean()


def strange_word(word: int) -> str:
    """What a word raises that is not known, in a run whose words are in shares."""
    with prepare(word_job(), make_plan(tensor=(2, {"vocabulary": ["words", "head"]}))) as run:
        try:
            run.model(torch.full((1, LENGTH), word))
        except Exception as error:
            return type(error).__name__
    return ""


def refused_optimizer() -> str:
    try:
        optimizer = torch.optim.Adafactor
        with prepare(word_job(optimizer=lambda parameters: optimizer(parameters)), make_plan(tensor=2)):
            return ""
    except HastenError as error:
        return str(error)


def noticed(choices: Mapping[str, Any]) -> list[str]:
    with prepare(word_job("unknown"), make_plan(**choices)) as run:
        return run.notices


def refused(choices: Mapping[str, Any], changes: Mapping[str, str] | None = None) -> str:
    """changes: of the job, by names: a model's, and a loss's."""
    fields: dict[str, Any] = dict(changes or {})
    if "loss" in fields:
        fields["loss"] = {"smoothed": smoothed, "squared": squared}[fields["loss"]]
    try:
        with prepare(word_job(**fields), make_plan(**choices)):
            return ""
    except HastenError as error:
        return str(error)


def all_refused(cases: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> list[str]:
    return [refused(*case) for case in cases]


def put_together(dim: int, parts: int) -> list[Tensor]:
    """A matrix whose shares the ranks gather, and the matrix."""
    from hasten.parallel.collectives import present_ranks
    from hasten.parallel.sharding import Share

    whole, ranks = torch.arange(96.0).reshape(12, 8), present_ranks()
    share = Split(dim, parts).share(whole, ranks)
    return [whole, Share(share, Split(dim, parts), ranks).gathered(share)]


class _Stopped(Exception):
    pass


def kept_job(stops_after: int | None) -> hasten.Job:
    """Whose loss may refuse to go on after so many calls."""
    calls = count(1)

    def stopping(model: nn.Module, batch: Any) -> Loss:
        if stops_after is not None and next(calls) > stops_after:
            raise _Stopped
        return loss(model, batch)

    return word_job(loss=stopping, valid=None, epochs=4)


def cut(folder: str, choices: Mapping[str, Any]) -> list[Any]:
    """A run that is saved behind each step, and ends in the middle of its second epoch."""
    try:
        hasten.train(
            kept_job(6), make_plan(**choices), run_dir=folder, saving=hasten.Saving(every_steps=1), receivers=[]
        )
    except (_Stopped, HastenError) as error:
        return [type(error).__name__]
    return []


def gone_on(folder: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    result = hasten.resume(kept_job(None), make_plan(**choices), run_dir=folder, receivers=[])
    return {"weights": dict(result.weights), "steps": result.steps}


def uncut() -> dict[str, Tensor]:
    return dict(hasten.train(kept_job(None), receivers=[]).weights)


def saved_at_six(folder: str, choices: Mapping[str, Any], **changes: Any) -> list[Any]:
    """A whole run of which only the checkpoints up to its sixth step stay."""
    saving, job = hasten.Saving(every_steps=3, keep_every=1), replace(kept_job(None), **changes)
    hasten.train(job, make_plan(**choices), run_dir=folder, saving=saving, receivers=[])
    if present_ranks().leads:
        store = Store(Path(folder) / "checkpoints")
        for each in store.found():
            if each.step > 6:
                store.remove(each)
    return ["saved"]


def averaged_job() -> dict[str, Any]:
    """Whose weights have an average, and whose best are kept."""
    valid = tuple(each[:7] for each in word_job().train)
    return {"average": hasten.ExponentialAverage(0.9), "valid": valid, "stop": hasten.EarlyStopping("loss", patience=9)}


def averaged_and_saved_at_six(folder: str, choices: Mapping[str, Any]) -> list[Any]:
    return saved_at_six(folder, choices, **averaged_job())


def averaged_and_gone_on(folder: str, choices: Mapping[str, Any]) -> dict[str, Tensor]:
    job = replace(kept_job(None), **averaged_job())
    return dict(hasten.resume(job, make_plan(**choices), run_dir=folder, receivers=[]).weights)
