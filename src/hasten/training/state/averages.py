"""An average of the weights over the updates of a run, which often generalises better than the last weights.

It changes once for each applied update. Parameters that require a gradient when the run begins, and floating-point
buffers named `running_mean` or `running_var`, are averaged. Everything else is copied, as torch's AveragedModel does by
default, with the value that the model has at the evaluation, or where weights are kept. The formulas are torch's
(torch.optim.swa_utils); the model is never copied, so what a plan did to it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from hasten.facts.job import EqualAverage, ExponentialAverage
from hasten.parallel.collectives import local_of
from hasten.parallel.sharding import Sharding
from hasten.training.setup.optimizers import MasterWeights
from hasten.training.state.sharded_state import own_part
from hasten.training.state.torch_tensors import buffers_of, have_same_form
from hasten.training.step_parts.torch_ops import copy_all

STATISTICS = ("running_mean", "running_var")


class WeightAverage:
    """The average of a model's trained parameters and running statistics; of 16-bit parameters, of their float32
    copies."""

    def __init__(
        self,
        model: nn.Module,
        masters: MasterWeights,
        kind: ExponentialAverage | EqualAverage,
        total_steps: int | None,
        sharding: Sharding | None = None,
    ) -> None:
        """total_steps: of the planned run, in applied updates; None counts an equal average from the first update.
        sharding: how this rank holds the parameters."""
        self._sharding = sharding or Sharding()
        self._parameters = dict(model.named_parameters())
        masters_of = zip(self._parameters, masters.replace(self._parameters.values()), strict=True)
        self._trained = {name: each for name, each in masters_of if each.requires_grad}
        self._statistics = {
            f"{path}.{name}".lstrip("."): (buffers_of(module), name)
            for path, module in model.named_modules()
            for name in STATISTICS
            if name in buffers_of(module)
        }
        self._means = dict[str, Tensor]()
        self._update_averaged()
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
        averaged = self._update_averaged()
        means, sources = _local(self._means.values()), _local(averaged.values())
        if not means:
            return
        if self._updates <= self._starts_after or self._moved == 0:
            # Until averaging begins the average follows the weights, so that it can be evaluated at any time.
            copy_all(means, sources)
            self._moved = int(self._updates > self._starts_after)
            return
        self._move(means, sources, torch.tensor(self._moved))
        self._moved += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside the block the model holds the average; after it, its own parameters and statistics, to the bit. Other
        buffers are never replaced: what the block writes into them stays."""
        self._update_averaged()
        live = self._live()
        with torch.no_grad():
            own = [each.detach().clone() for each in live.values()]
            _write(self._means.values(), live.values())
        try:
            yield
        finally:
            with torch.no_grad():
                _write(own, live.values())

    @property
    def statistics(self) -> list[Tensor]:
        """The means of running statistics, which ranks of a run may have of their own samples."""
        self._update_averaged()
        return [self._means[name] for name in self._statistics if name in self._means]

    def state_dict(self) -> dict[str, Any]:
        return {"means": self._sharding.marked(self._means), "moved": self._moved, "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The model must be as it was when the state was taken. Raises ValueError for a mean of a tensor that this
        model does not have."""
        live = dict[str, Tensor](self._trained) | self._present_statistics()
        means = dict[str, Tensor]()
        for name, saved in state["means"].items():
            if name not in live:
                raise ValueError(f"it has an average of {name[:200]!r}, which this model does not have")
            means[name] = live[name].detach().clone()
            means[name].copy_(own_part(self._sharding, name, saved, live[name]))
        self._means = means
        self._moved, self._updates = state["moved"], state["updates"]

    def _update_averaged(self) -> dict[str, Tensor]:
        """Have a mean for each tensor that is averaged now, and for no other. Those tensors, in the order of the means.

        A statistic that was replaced by one of another form begins a new mean.
        """
        means, averaged = self._means, dict[str, Tensor](self._trained) | self._present_statistics()
        self._means = {
            name: means[name] if name in means and have_same_form(means[name], each) else each.detach().clone()
            for name, each in averaged.items()
        }
        return averaged

    def _present_statistics(self) -> dict[str, Tensor]:
        return {
            name: each
            for name, (holder, key) in self._statistics.items()
            if (each := holder.get(key)) is not None and each.is_floating_point()
        }

    def _live(self) -> dict[str, Tensor]:
        """What the model computes with, by the names and in the order of the means."""
        live = dict[str, Tensor](self._parameters) | self._present_statistics()
        return {name: live[name] for name in self._means}


def _write(source: Iterable[Tensor], target: Iterable[Tensor]) -> None:
    """Through `.data`: the block restores it, so autograd must not count it as a change."""
    copy_all(_local(each.data for each in target), _local(source))


def _local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What this rank holds of each: torch takes no list of parts and of whole ones."""
    return [local_of(each) for each in tensors]
