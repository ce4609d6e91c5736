"""An average of the weights along the way, which often generalises better than the last ones.

It moves once for each applied update and for nothing else. Floating-point buffers (batch-norm statistics) are averaged
alike, so that the average is evaluated with statistics of its own weights' neighbourhood. The formulas are torch's
(torch.optim.swa_utils); only where the tensors live is ours: the model is never copied, so what a plan did to it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from hasten.facts.job import EqualAverage, ExponentialAverage
from hasten.training.averaged_buffers import AveragedBuffers
from hasten.training.forms import place_in_memory
from hasten.training.master_weights import MasterWeights
from hasten.training.memories import Memories


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
        self._parameters = list(model.parameters())
        self._trained = list(masters.replace(self._parameters))
        self._of_parameters = [parameter.detach().clone() for parameter in self._trained]
        self._buffers = AveragedBuffers(model)
        self._follow_buffers()
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
        self._follow_buffers()
        if self._updates <= self._starts_after or self._moved == 0:
            # Until averaging begins the average follows the weights, so that it can be evaluated at any time.
            _copy(self._source, self._average)
            self._moved = int(self._updates > self._starts_after)
            return
        self._move(_here(self._average), _here(self._source), torch.tensor(self._moved))
        self._buffers.keep_infinities()
        self._moved += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model holds the average inside the block, and its own weights, to the bit, after it. What a module has
        filled inside, and remembers that, stays filled."""
        self._follow_buffers()
        with torch.no_grad():
            parameters = [parameter.detach().clone() for parameter in self._parameters]
            buffers = self._buffers.copies()  # which an evaluation may replace
            _copy(self._average, _uncounted(self._live))
        memories = Memories(self._buffers.modules)
        try:
            yield
        finally:
            with torch.no_grad():
                _copy(parameters, _uncounted(self._parameters))
                filled = self._buffers.filled(memories.filled())
                buffers.put_back()
                for each in filled:
                    each.put_in()

    def named(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's state_dict() with the average in place of its weights, where both lie."""
        self._follow_buffers()
        averages = {
            where: mean.to(live.dtype)
            for live, mean in zip(self._live, self._average, strict=True)
            if live.numel() and (where := place_in_memory(live)) is not None
        }
        present: dict[str, Tensor] = model.state_dict()
        return {
            key: averages.get(place_in_memory(each) or (), each) if isinstance(each, Tensor) else each
            for key, each in present.items()
        }

    def state_dict(self, marked: Callable[[Sequence[Tensor]], Sequence[Any]] = list) -> dict[str, Any]:
        """marked: gives what stands for the parameters' averages, in their order."""
        average = [*marked(self._of_parameters), *self._buffers.by_place]
        return {"average": average, "moved": self._moved, "updates": self._updates}

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        own: Callable[[Sequence[Any], Sequence[Tensor]], Iterable[Tensor]] = lambda saved, like: saved,
    ) -> None:
        """own: gives what this rank holds of the parameters' averages, in their order, as it holds those it has."""
        mine = self._of_parameters
        for each, saved in zip(mine, own(state["average"][: len(mine)], mine), strict=True):
            each.copy_(saved)
        self._buffers.load(state["average"][len(mine) :])
        self._moved, self._updates = state["moved"], state["updates"]

    def _follow_buffers(self) -> None:
        if self._buffers.follow():
            self._live = [*self._parameters, *self._buffers.buffers]
            self._source = [*self._trained, *self._buffers.buffers]
            self._average = [*self._of_parameters, *self._buffers.averages]


def _uncounted(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same memory, but what is written into it does not look written to who asks torch for its count: it is put
    back."""
    return [each.data for each in tensors]


def _copy(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    torch._foreach_copy_(_here(target), _here(source))  # pyright: ignore[reportPrivateImportUsage]


def _here(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What this rank holds of each: torch moves no list of parts and of whole ones."""
    return [getattr(each, "_local_tensor", each) for each in tensors]
