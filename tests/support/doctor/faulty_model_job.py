"""A job with faults in its model, and one whose batches are jagged, for profiles of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import hasten


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 50, 3)
        self.norm = nn.BatchNorm2d(50)
        self.left_out = nn.Linear(8, 8)
        self.cut_off = nn.Linear(50, 50)
        self.last = nn.Linear(50, 3)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.convolution(images)).mean((2, 3))
        return self.last(features + self.cut_off(features).detach())


def job(loss: Callable[..., Any] | None = None, **changes: Any) -> hasten.Job:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 1, 6, 6, generator=generator), torch.randint(0, 3, (64,), generator=generator)
    given: dict[str, Any] = {
        "model": Model,
        "loss": loss or hasten.supervised(functional.cross_entropy),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        "train": rows,
        "batch_size": 16,
        "epochs": 1,
    }
    return hasten.Job(**(given | changes))


class Padding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows).to_padded_tensor(0.0).sum(1)


def jagged_job() -> hasten.Job:
    """Modes of torch that count operations do not know its nested tensors."""

    def collate(samples: Any) -> Any:
        rows = [images.flatten()[: 5 + number % 3, None] for number, (images, _) in enumerate(samples)]
        return torch.nested.nested_tensor(rows, layout=torch.jagged), torch.stack([label for _, label in samples])

    return job(model=Padding, train=TensorDataset(*job().train), collate=collate)
