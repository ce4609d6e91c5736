"""A small classifier, rows for it, and an optimizer that keeps what it was given: for tests of the step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.facts.job import Loss
from hasten.training.step import Step
from hasten.training.step_parts.losses import mean_loss

IGNORED = -100


class Recording(torch.optim.SGD):
    """SGD at rate 0 that keeps the gradients which each update saw."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.0)
        self.seen: list[list[Tensor]] = []

    def step(self, closure=None):
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        self.seen.append([gradient.clone() for gradient in gradients])
        return super().step(closure)


def classifier(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4)).to(dtype)


def rows(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    return features, torch.randint(0, 4, (count,), generator=generator)


def token_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
    features, target = batch
    total = functional.cross_entropy(model(features), target, ignore_index=IGNORED, reduction="sum")
    return Loss(total, (target != IGNORED).sum())


def mean_loss_function(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def gradients_of(loss, pieces, *, auxiliary=None, options=None) -> tuple[list[Tensor], float]:
    """The gradients that one update over `pieces` applies, and the logged loss."""
    model = classifier()
    optimizer = Recording(model.parameters())
    step = Step(model, loss, [optimizer], options, reference=3)
    for position, piece in enumerate(pieces):
        step.accumulate(piece, len(piece[1]), last=position == len(pieces) - 1)
    step.update()
    return optimizer.seen[0], mean_loss(step.losses.drain())


def reference_gradients(objective) -> list[Tensor]:
    model = classifier()
    objective(model).backward()
    return [parameter.grad for parameter in model.parameters()]


def relative_error(found: list[Tensor], wanted: list[Tensor]) -> float:
    difference = math.sqrt(sum((a - b).detach().square().sum().item() for a, b in zip(found, wanted, strict=True)))
    return difference / max(math.sqrt(sum(b.detach().square().sum().item() for b in wanted)), 1e-300)


def cut(batch: tuple[Tensor, Tensor], sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(batch[0].split(sizes), batch[1].split(sizes), strict=True))
