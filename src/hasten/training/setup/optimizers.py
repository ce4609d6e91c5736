"""The job's optimizers, checked against its model, as the plan wants them.

A parameter that no optimizer holds stands still without a word, one that two hold moves twice, and one of another model
moves for nothing. All three are seen here, before the first step.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hasten.errors import JobError, Misconfigured
from hasten.facts.job import Job
from hasten.parallel.sharding import Sharding
from hasten.techniques.common.job_optimizers import make_optimizers, parameters_given
from hasten.techniques.fused_optimizer import Implementation, refusals, with_implementation
from hasten.techniques.learning_rate import set_learning_rate
from hasten.techniques.setup import OptimizerOptions
from hasten.training.state.optimizer_modes import with_modes

_WHOLE_MATRICES = frozenset({"Adafactor", "LBFGS", "Muon", "Shampoo", "SOAP"})


def build_optimizers(job: Job, model: nn.Module, options: OptimizerOptions) -> list[Optimizer]:
    """New optimizers over the parameters of a model that is already on its device.

    They hold every trainable parameter that they were given exactly once, and no other tensor. What Job.parameters
    does not give them is left alone: `left_out` names it. Those that have modes are in training mode.

    Raises JobError when that does not hold or a step needs a closure, UserCodeFailed when Job.optimizer raises, and
    PlanError when the optimizers cannot be as the plan wants them.
    """
    given = parameters_given(job, model)
    optimizers = make_optimizers(job, given)
    for optimizer in optimizers:
        _refuse_closures(optimizer)
    _check_ownership(model, given, optimizers)
    if options.learning_rate is not None:
        set_learning_rate(optimizers, options.learning_rate)
    if options.implementation is not None:
        optimizers = _implemented(optimizers, options.implementation)
    for optimizer in with_modes(optimizers):
        optimizer.train()
    return optimizers


def left_out(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[str]:
    """The names of the trainable parameters that no optimizer holds."""
    held = {id(parameter) for parameter in _held(optimizers)}
    return [name for name, each in model.named_parameters() if each.requires_grad and id(each) not in held]


def check_optimizers(optimizers: Sequence[Optimizer], sharding: Sharding) -> None:
    """Raises Misconfigured for an optimizer that computes with whole matrices, where ranks hold shares of them."""
    for optimizer in optimizers if sharding.splits else ():
        if type(optimizer).__name__ in _WHOLE_MATRICES:
            what = f"{type(optimizer).__name__} computes with whole matrices, and each process has a share of them"
            raise Misconfigured(what, where="tensor", fix="take another optimizer, or leave `tensor` out of the plan")


def _refuse_closures(optimizer: Optimizer) -> None:
    parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    if any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters):
        raise JobError(
            "optimizer",
            f"is {type(optimizer).__name__}, whose step computes the loss as often as it likes; a step here has one "
            "loss, clips its gradients and may be skipped",
            "take an optimizer whose step() needs no closure, such as torch.optim.AdamW",
        )


def _check_ownership(model: nn.Module, given: Iterable[Any], optimizers: Sequence[Optimizer]) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = Counter(id(parameter) for parameter in _held(optimizers))
    for parameter in _held(optimizers):
        if id(parameter) not in names:
            raise JobError(
                "optimizer",
                f"holds a tensor of shape {tuple(parameter.shape)} that is no parameter of the model",
                "build it from what it is given; whatever else is trained belongs into the model",
            )
    twice = [names[key] for key, times in held.items() if times > 1]
    if twice:
        raise JobError(
            "optimizer", f"holds {_listed(twice)} more than once", "give every parameter to one group of one optimizer"
        )
    wanted = [parameter for parameter in _flat(given) if parameter.requires_grad]
    missing = [names.get(id(each), f"a tensor of shape {tuple(each.shape)}") for each in wanted if id(each) not in held]
    if missing:
        raise JobError(
            "optimizer",
            f"does not hold {_listed(missing)}, so it would never move",
            "give every parameter to an optimizer; for one that is to stay, requires_grad_(False) or Job.parameters",
        )


def _implemented(optimizers: Sequence[Optimizer], implementation: Implementation) -> list[Optimizer]:
    reasons = refusals(optimizers, implementation, next(_held(optimizers)).device)
    return [
        optimizer if reason else with_implementation(optimizer, implementation)
        for optimizer, reason in zip(optimizers, reasons, strict=True)
    ]


def _held(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _flat(given: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors in parameters, (name, parameter) pairs and groups."""
    for item in given:
        if isinstance(item, dict):
            yield from _flat(item["params"])
        else:
            yield item[1] if isinstance(item, tuple) else item


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
