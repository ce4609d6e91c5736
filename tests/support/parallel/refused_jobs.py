"""Runs of several ranks that torch cannot take in a step, or in parts; for started processes to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from hasten.entry import prepare
from hasten.errors import HastenError
from hasten.facts.plan import make_plan
from support.ranks.word_jobs import job_on_words

WORDS, LENGTH, WIDTH = 8, 4, 6


class Normed(nn.Module):
    """By batch norm over samples alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.BatchNorm1d(LENGTH * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.norm(self.words(words).flatten(1)).unflatten(1, (LENGTH, WIDTH)))


class Plain(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH, sparse=sparse), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.words(words))


class Reentrant(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.between = nn.Linear(WIDTH, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        stream = self.words(words)
        for _ in range(2):
            stream = checkpoint(self.between, stream, use_reentrant=True)
        return self.head(stream)


class WithPlainState(torch.optim.SGD):
    """As an optimizer from elsewhere that knows of no parts."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for each in group["params"]:
                each.grad.add_(torch.ones(each.shape, dtype=each.dtype))
        return super().step(closure)


JOBS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "normed": lambda: {"model": Normed, "batch_size": 35},  # 2 are left
    "normed, without the last batch": lambda: {"model": Normed, "batch_size": 35, "drop_last": True},
    "normed, by lists": lambda: {
        "model": Normed,
        "batch_size": None,
        "train": DataLoader(
            TensorDataset(*job_on_words(Normed, WORDS, LENGTH).train), batch_sampler=[[*range(35)], [35, 36]]
        ),
    },
    "sparse": lambda: {"model": lambda: Plain(sparse=True), "optimizer": lambda some: torch.optim.SGD(some, lr=0.1)},
    "reentrant": lambda: {"model": Reentrant},
    "adafactor": lambda: {"optimizer": torch.optim.Adafactor},
    "rprop": lambda: {"optimizer": torch.optim.Rprop},
    "synchronized": lambda: {"model": lambda: nn.SyncBatchNorm.convert_sync_batchnorm(Normed())},
    "plain state": lambda: {"optimizer": WithPlainState},
}


def told(name: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    """What an epoch is refused with, in which of its steps, and the notices before it."""
    fields: dict[str, Any] = {"model": Plain, "batch_size": 17, "clip_norm": None} | JOBS[name]()  # of 37 samples
    notices, steps = list[str](), 0
    try:
        with prepare(job_on_words(fields.pop("model"), WORDS, LENGTH, **fields), make_plan(**choices)) as run:
            notices = [*run.notices]
            for batch in run.epoch_batches():
                run.step(batch)
                steps = run.steps
    except HastenError as error:
        return {"told": str(error), "steps": steps, "notices": notices}
    return {"told": "", "steps": steps, "notices": notices}
