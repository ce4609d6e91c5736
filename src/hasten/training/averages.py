"""An average of the weights along the way, which often generalises better than the last ones.

It moves once for each applied update and for nothing else. Floating-point buffers (batch-norm statistics) are averaged
alike, so that the average is evaluated with statistics of its own weights' neighbourhood. The formulas are torch's
(torch.optim.swa_utils); only where the tensors live is ours: the model is never copied, so what a plan did to it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from hasten.facts.job import EqualAverage, ExponentialAverage
from hasten.training.master_weights import MasterWeights


class WeightAverage:
    """The average of a model's parameters and floating-point buffers; of 16-bit parameters, of their float32 copies."""

    def __init__(
        self,
        model: nn.Module,
        masters: MasterWeights,
        kind: ExponentialAverage | EqualAverage,
        total_steps: int | None,
    ) -> None:
        """total_steps: of the planned run, in applied updates; None counts an equal average from the first update."""
        buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._live: list[Tensor] = [*model.parameters(), *buffers]
        self._source: list[Tensor] = [*masters.replace(model.parameters()), *buffers]
        self._average = [tensor.detach().clone() for tensor in self._source]
        self._moved = 0
        self._updates = 0
        if isinstance(kind, ExponentialAverage):
            self._move, self._starts_after = get_ema_multi_avg_fn(kind.decay), 0
        else:
            self._move, self._starts_after = get_swa_multi_avg_fn(), int(kind.start * (total_steps or 0))

    @torch.no_grad()
    def after_update(self) -> None:
        """Take in the weights as an applied update left them."""
        self._updates += 1
        if self._updates <= self._starts_after or self._moved == 0:
            # Until averaging begins the average follows the weights, so that it can be evaluated at any time.
            _copy(self._source, self._average)
            self._moved = int(self._updates > self._starts_after)
            return
        self._move(self._average, self._source, torch.tensor(self._moved))
        self._moved += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model holds the average inside the block, and its own weights, to the bit, after it."""
        with torch.no_grad():
            own = [tensor.detach().clone() for tensor in self._live]
            _copy(self._average, self._live)
        try:
            yield
        finally:
            with torch.no_grad():
                _copy(own, self._live)

    def named(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's state_dict() with the average in place of its weights, where both lie."""
        averages: dict[int, Tensor] = {
            live.data_ptr(): mean.to(live.dtype) for live, mean in zip(self._live, self._average, strict=True)
        }
        present: dict[str, Tensor] = model.state_dict()
        return {
            key: averages.get(each.data_ptr(), each) if isinstance(each, Tensor) else each
            for key, each in present.items()
        }

    def state_dict(self) -> dict[str, Any]:
        return {"average": list(self._average), "moved": self._moved, "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for mine, saved in zip(self._average, state["average"], strict=True):
            mine.copy_(saved)
        self._moved, self._updates = state["moved"], state["updates"]


def _copy(source: list[Tensor], target: list[Tensor]) -> None:
    torch._foreach_copy_(target, source)  # pyright: ignore[reportPrivateImportUsage]
