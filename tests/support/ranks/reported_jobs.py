"""What tests of public reports run on every rank; a module of its own, so that started processes can import it."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, WeightedRandomSampler

import hasten
from support import small_job
from support.training.reported_runs import IN_ORDER, Numbers, trained


class MasksKept(nn.Dropout):
    def __init__(self, kept: list[Tensor]) -> None:
        super().__init__(0.5)
        self.kept = kept

    def forward(self, rows: Tensor) -> Tensor:
        self.kept.append(super().forward(torch.ones_like(rows)))
        return super().forward(rows)


class WithMethods(nn.Linear):
    """Whose loss is computed by a method of its own that is not forward."""

    def own_loss(self, rows: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(rows, self.weight, self.bias), labels)


class Chosen(Numbers):
    """Which answers to an index by a choice of its own."""

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([random.random()])


def token_loss(model: nn.Module, batch: Any) -> hasten.Loss:
    """Some rows count nothing, so that ranks count unlike numbers."""
    counted = batch[0][:, 0] > 0
    total = (functional.cross_entropy(model(batch[0]), batch[1], reduction="none") * counted).sum()
    return hasten.Loss(total, counted.sum())


def method_loss(model: Any, batch: Any) -> Tensor:
    return model.own_loss(*batch)


def own_method_zeros() -> nn.Module:
    model = WithMethods(6, 3)
    return [nn.init.zeros_(each) for each in model.parameters()] and model


def masks_and_choices() -> dict[str, Any]:
    """Of this rank: the masks of its dropout, and what its data set chose."""
    masks, chosen = list[Tensor](), list[float]()
    model = lambda: nn.Sequential(MasksKept(masks), nn.Linear(6, 3))  # noqa: E731
    trained(model=model, epochs=1)

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        chosen.extend(batch.flatten().tolist())
        return model(batch).mean()

    trained(model=lambda: nn.Linear(1, 1), train=Chosen(16), loss=loss, epochs=1)
    return {"masks": torch.cat(masks), "chosen": chosen}


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def weighted() -> WeightedRandomSampler:
    return WeightedRandomSampler([float(number % 4 == 0) for number in range(16)], 16)


def samples_seen(count: int, **options: Any) -> list[float]:
    """By this rank, in an epoch."""
    seen = list[float]()

    def loss(model: nn.Module, batch: Tensor) -> hasten.Loss:
        seen.extend(batch.flatten().tolist())
        return hasten.Loss(model(batch).sum() * 1e-4, len(batch))

    train = DataLoader(Numbers(count), 4, **options)
    trained(model=lambda: nn.Linear(1, 1), train=train, batch_size=None, loss=loss, epochs=1)
    return seen


def evaluated(count: int) -> float:
    """The loss of so many samples."""
    valid = tuple(each[:count] for each in small_job().train)
    return trained(valid=valid, **IN_ORDER)[0].results["loss"]


def weights_and_norms(choices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    result, steps, _ = trained(hasten.make_plan(**choices), **IN_ORDER | changes)
    return {"weights": dict(result.weights), "norms": [each.gradient_norm for each in steps]}


def reported(choices: dict[str, Any]) -> dict[str, Any]:
    """All that the tests of ranks ask, in one run of the ranks."""
    return {
        "drawn": masks_and_choices(),
        "tokens": weights_and_norms({}, loss=token_loss),
        "method": weights_and_norms({}, loss=method_loss, model=own_method_zeros),
        "clipped": weights_and_norms(choices, clip_norm=0.2),
        "accumulated": weights_and_norms({"accumulation": 2}, loss=token_loss),
        "normed": weights_and_norms({}, model=normed),
        "seen": samples_seen(17),
        "weighted": samples_seen(16, sampler=weighted()),
        "evaluated": evaluated(5),
    }
