"""The optimizer steps of a run, read from inside when the first optimizer is about to step: the gradients that its
optimizers get, and the updates they make, beside the job's own optimizers in float64 that get the same gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hasten.errors import InvalidMeasurement
from hasten.measure.float64_reference import in_float64
from hasten.measure.gradient_error import UpdateError, update_error
from hasten.techniques.setup import OptimizerOptions
from hasten.training.run import Run
from hasten.training.setup.optimizers import build_optimizers

Tensors = Mapping[str, Tensor]
Rates = list[dict[str, Any]]  # of every group of every optimizer: learning rate, momentum, weight decay, …
DROPOUT = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerStep:
    """gradients: of all parameters, as the optimizers got them; norm: of all of them, before clipping, None where the
    job does not clip by norm; rates: of every group."""

    gradients: Tensors
    norm: float | None
    rates: Rates
    updates: Callable[[Rates], dict[str, UpdateError]]  # beside the job's optimizers in float64, given these rates


class OptimizerSteps:
    """Of a run that has taken none, with its dropout off."""

    def __init__(self, run: Run) -> None:
        self._run, self._gradients, self._rates = run, dict[str, Tensor](), Rates()
        without_dropout(run.model)
        self._truth = _Optimizers(run)
        run.optimizers[0].register_step_pre_hook(self._read)  # the others step after it

    def steps(self, before: Callable[[int, Any], None], first: int = 0) -> Iterator[OptimizerStep]:
        """From step `first` on.

        before: called with the step's number, from 0 on, and its first microbatch before that is computed.
        """
        run, begins, weights = self._run, True, dict[str, Tensor]()
        for batch in run.batches():
            if begins and run.steps >= first:
                before(run.steps - first, batch)
                weights = {name: each.detach().clone() for name, each in _trained(run).items()}
            self._gradients = {}
            run.step(batch)
            begins = run.window_closed
            if begins and run.steps > first:
                if not self._gradients:
                    raise InvalidMeasurement(f"step {run.steps - 1} was skipped: a gradient is not finite")
                yield self._step(weights)

    def _read(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        trained = _trained(self._run)
        self._gradients = {name: each.grad.detach().clone() for name, each in trained.items() if each.grad is not None}
        self._rates = [_rates_of(group) for each in self._run.optimizers for group in each.param_groups]

    def _step(self, before: Tensors) -> OptimizerStep:
        gradients, after = self._gradients, _trained(self._run)

        def updates(rates: Rates) -> dict[str, UpdateError]:
            truth = self._truth.step(before, gradients, rates)
            return {name: update_error(before[name], after[name], each) for name, each in truth.items()}

        return OptimizerStep(gradients=gradients, norm=self._run.gradient_norm, rates=self._rates, updates=updates)


class _Optimizers:
    """The job's own optimizers over a float64 copy of a run's parameters."""

    def __init__(self, run: Run) -> None:
        model = in_float64(run.model, run.device)
        self._weights = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._optimizers = build_optimizers(run.job, model, OptimizerOptions())

    def step(self, weights: Tensors, gradients: Tensors, rates: Rates) -> Tensors:
        """These weights after their step."""
        groups = [group for each in self._optimizers for group in each.param_groups]
        if len(groups) != len(rates):
            raise InvalidMeasurement(f"the optimizers have {len(groups)} groups, and the baseline's have {len(rates)}")
        for group, own in zip(groups, rates, strict=True):
            group.update(own)
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(weights[name])
                gradient = gradients.get(name)
                weight.grad = None if gradient is None else gradient.to(weight.device, torch.float64)
        for optimizer in self._optimizers:
            optimizer.step()
        return self._weights


def without_dropout(model: nn.Module) -> None:
    """Let every dropout layer drop with a probability of 0."""
    for module in model.modules():
        if isinstance(module, DROPOUT):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0


def state_of(run: Run) -> dict[str, Tensor]:
    """All weights and buffers by name, where they are; of 16-bit weights, the float32 copies that are trained."""
    return {**dict(run.model.named_buffers()), **{name: each.detach() for name, each in _trained(run).items()}}


def put_state(run: Run, state: Tensors) -> None:
    """Copy state_of another run into this one, as far as this one has the same."""
    places = [*run.model.named_buffers(), *run.model.named_parameters(), *_trained(run).items()]
    with torch.no_grad():
        for name, place in places:
            if name in state and place.shape == state[name].shape:
                place.copy_(state[name])


def _trained(run: Run) -> dict[str, Tensor]:
    """Name -> what an optimizer updates: the parameter, or the float32 copy of a 16-bit one."""
    return dict(zip(run.built.step.names, run.built.step.parameters, strict=True))


def _rates_of(group: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        key: value.item() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"
    }
    return {key: value for key, value in found.items() if _is_rate(value)}


def _is_rate(value: Any) -> bool:
    """True for numbers and tuples of them; flags such as fused belong to the implementation."""
    if isinstance(value, tuple | list):
        return all(map(_is_rate, value))
    return isinstance(value, int | float) and not isinstance(value, bool)
