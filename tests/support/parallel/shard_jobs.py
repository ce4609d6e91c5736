"""Runs whose ranks hold a model in parts; a module of its own, so that started processes can import it by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

import hasten
from hasten.entry import prepare
from hasten.errors import HastenError
from hasten.facts.events import Noticed
from hasten.facts.job import Loss
from hasten.facts.plan import make_plan
from hasten.training.loop import train_run
from support import small_job
from support.ranks.rank_jobs import PartlyUsed
from support.ranks.word_jobs import job_on_words, loss
from support.training.collected_events import Collected

WORDS, WIDTH, LENGTH = 19, 8, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(3 * WIDTH, WIDTH),
        )
        self.dropout = nn.Dropout(0.0)

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.dropout(self.narrow(functional.gelu(self.wide(self.norm(rows)))))


class Language(nn.Module):
    """A few blocks, and a head whose weight is the embedding's; `scale` has fewer elements than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        rows = self.words(words)
        for block in self.blocks:
            rows = block(rows)
        return self.head(self.scale * rows)


def gathered_layers() -> list[str]:
    with prepare(language_job(), make_plan(shard="zero3")) as run:
        return [name for name, each in run.model.named_modules() if isinstance(each, FSDPModule)]


def language_job(**changes: Any) -> hasten.Job:
    fields: dict[str, Any] = {"metrics": {"accuracy": MulticlassAccuracy(WORDS, average="micro")}}
    return job_on_words(Language, WORDS, LENGTH, **(fields | changes))


def trained(choices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A whole run with an evaluation before it and after each epoch: what it leaves, and how much this rank held."""
    with prepare(language_job(**changes), make_plan(**choices)) as run:
        run.evaluate()
        results = list[float]()
        for _ in range(3):
            for batch in run.epoch_batches():
                run.step(batch)
            results += run.evaluate().results.values()
        held = [each.to_local() if isinstance(each, DTensor) else each for each in run.model.parameters()]
        weights = run.weights()
        return {
            "weights": weights,
            "losses": [window.mean for window in run.losses.drain()],
            "results": results,
            "held": sum(each.numel() for each in held),
            "whole": sum(each.numel() for each in run.model.parameters()),
            "classes": sorted({type(each).__name__ for each in run.model.modules()}),
        }


def trained_with_average(choices: dict[str, Any]) -> dict[str, Any]:
    return trained(choices, average=hasten.ExponentialAverage(0.9))


def refusals() -> list[str]:
    """What a first step in parts is refused with, of one job or plan after the other."""

    def with_auxiliary(model: nn.Module, batch: Any) -> Loss:
        return replace(loss(model, batch), auxiliary=model(batch[0]).square().mean())

    meta = {"shard": ("zero3", {"meta": True})}
    return [
        _refusal(loss=with_auxiliary),
        _refusal(model=lambda: Language().bfloat16()),
        _refusal({"shard": ("zero3", {"parameters": "bf16"})}),
        _refusal(meta, model=lambda: Own(on_host=True).double()),
        _refusal(meta, model=lambda: nn.Linear(2, int(torch.ones(1).item()))),
    ]


def _refusal(choices: dict[str, Any] | None = None, **changes: Any) -> str:
    try:
        with prepare(language_job(**changes), make_plan(**(choices or {"shard": "zero3"}))) as run:
            run.step(next(run.batches()))
    except HastenError as error:
        return str(error)
    return ""


def told_unreached() -> list[str]:
    """What is told of a model of which one layer is used by the loss on no rank, after a whole run."""
    collected = Collected()
    job = small_job(
        model=lambda: PartlyUsed("by the loss"),
        loss=lambda model, batch: functional.cross_entropy(model(batch[0])[0], batch[1]),
    )
    with prepare(job) as run:
        train_run(run, collected)
    return [event.text for event in collected.events if isinstance(event, Noticed) and "no gradient" in event.text]


class Own(Language):
    """Whose weights differ from one rank to the other, and whose tables are no part of a state; on_host: tensors that
    are no buffers."""

    def __init__(self, on_host: bool = False) -> None:
        super().__init__()
        if dist.is_initialized():
            for each in self.parameters():
                nn.init.normal_(each, std=0.1 * (1 + dist.get_rank()))
        self.register_buffer("table", torch.arange(float(WIDTH)), persistent=False)
        if on_host:
            self.kept = torch.ones(3)

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words) + self.table.mean()


def made_once(choices: dict[str, Any]) -> dict[str, Any]:
    """A whole run of a model that is made differently on each rank; and how often it was made without memory."""
    without = list[bool]()

    def model() -> nn.Module:
        made = Own().double()
        without.append(all(each.is_meta for each in made.parameters()))
        return made

    return trained(choices, model=model) | {"without memory": without}


def trained_in_short(choices: dict[str, Any]) -> dict[str, Any]:
    """A run in float32 and bf16, and in what format the weights of its blocks and its head were while they computed."""
    formats = dict[str, str]()

    def spied() -> nn.Module:
        model = Language()
        for name, each in {"block": model.blocks[0].wide, "head": model.head}.items():  # pyright: ignore
            each.register_forward_pre_hook(
                lambda module, _, name=name: formats.update({name: str(module.weight.dtype)})
            )
        return model

    return trained(choices, model=spied) | {"formats": formats}
