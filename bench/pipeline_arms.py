"""The arms of bench/pipeline.py whose loop is a naive script's own; hasten's are those of before_after_arms.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from bench.pipeline_naive import SCRIPTS, photos_script, train_on
from bench.stepwise import stepwise
from torch import nn
from torch.utils.data import DataLoader


class Ticking:
    """A loader that calls tick before each batch."""

    def __init__(self, loader: DataLoader[Any], tick: Callable[[], None]) -> None:
        self._loader, self._tick = loader, tick

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            self._tick()
            yield batch


def images(folder: str) -> Callable[[int], None]:
    def train(tick: Callable[[], None]) -> None:
        script = photos_script()
        data = script["PhotoDataset"](f"{folder}/train", train=True)
        model, loader = script["Net"](32, len(data.classes)), DataLoader(data, batch_size=64, shuffle=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in count():
            script["train_epoch"](model, Ticking(loader, tick), nn.CrossEntropyLoss(), optimizer, epoch)

    return stepwise(train)


def script(name: str) -> Callable[[int], None]:
    """name: in SCRIPTS."""

    def train(tick: Callable[[], None]) -> None:
        chosen = SCRIPTS[name]()
        model = chosen.job.model()
        loader = DataLoader(chosen.train, batch_size=chosen.job.batch_size, shuffle=True)
        train_on(chosen, model, (batch for _ in count() for batch in Ticking(loader, tick)))

    return stepwise(train)
