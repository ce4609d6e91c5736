"""Windows that begin, buffers that a forward pass moves in some way, and jobs of which a window fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.techniques.setup import StepOptions
from hasten.training.buffer_copies import SMALL_BYTES
from hasten.training.generators import Generators
from hasten.training.kept_buffers import Buffers
from hasten.training.loss_parameters import LossParameters
from hasten.training.reachable import reached
from hasten.training.window_start import WindowStart

LARGE = SMALL_BYTES // 4 + 1  # float32 numbers


class Holder(nn.Module):
    """One buffer, and a forward pass that moves it in some way."""

    def __init__(self, buffer: Tensor, move: Any) -> None:
        super().__init__()
        self.register_buffer("held", buffer)
        self._move = move

    def forward(self) -> None:
        self._move(self)


def in_place(module: Any) -> None:
    module.held.mul_(0.5).add_(1)


def past_the_count(module: Any) -> None:
    module.held.data.mul_(0.5).add_(1)


def by_batch_norm(module: Any) -> None:
    features = torch.randn(4, module.held.numel())
    functional.batch_norm(features, module.held, torch.ones_like(module.held), training=True)


def anew(module: Any) -> None:
    module.held = module.held * 0.5 + 1


def start_of(model: nn.Module, windows: int = 1, loss: Any = None, *, scaled: bool = True) -> WindowStart:
    device = torch.device("cpu")
    found = reached(model, loss, device)
    built = SimpleNamespace(
        generators=Generators(found.generators),
        buffers=Buffers(found.modules),
        loss_parameters=LossParameters(found.modules, model),
    )
    setup = SimpleNamespace(step=StepOptions(scale_gradients=scaled))
    run: Any = SimpleNamespace(built=built, device=device, setup=setup)
    return WindowStart(run, windows)
