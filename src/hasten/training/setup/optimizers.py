"""The job's optimizers, checked against its model, as the plan wants them; and weights of theirs that differ from the
model's: float32 copies, and other weights in evaluation mode.

A bf16 number has eight bits of precision: an update below about 1/256 of the weight is rounded away. So the optimizer
updates a float32 copy, gradients are summed in float32, and the 16-bit weight is the rounded copy.
Source: mixed-precision training, Micikevicius et al. 2017, arXiv:1710.03740, section 3.1.

The eval() of a schedule-free optimizer writes the weights to evaluate and to keep into the parameters. Those of
training are restored from a copy, as its train() rounds: evaluations and saves do not change what a run learns. Source:
The Road Less Scheduled, Defazio et al. 2024, arXiv:2405.15682; https://github.com/facebookresearch/schedule_free
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from hasten.errors import JobError, Misconfigured
from hasten.facts.job import Job
from hasten.parallel.sharding import Sharding
from hasten.techniques.common.job_optimizers import make_optimizers, parameters_given
from hasten.techniques.fused_optimizer import Implementation, refusals, with_implementation
from hasten.techniques.learning_rate import set_learning_rate
from hasten.techniques.setup import OptimizerOptions

_SHORT = (torch.bfloat16, torch.float16)
_WHOLE_MATRICES = frozenset({"Adafactor", "LBFGS", "Muon", "Shampoo", "SOAP"})


def build_optimizers(job: Job, model: nn.Module, options: OptimizerOptions) -> list[Optimizer]:
    """New optimizers over the parameters of a model that is already on its device.

    They hold every trainable parameter that they were given exactly once, and no other tensor. What Job.parameters
    does not give them is not trained. Those that have modes are in training mode.

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


def check_optimizers(optimizers: Sequence[Optimizer], sharding: Sharding) -> None:
    """Raises Misconfigured for an optimizer that computes with whole matrices, where ranks hold shares of them."""
    for optimizer in optimizers if sharding.splits else ():
        if type(optimizer).__name__ in _WHOLE_MATRICES:
            what = f"{type(optimizer).__name__} computes with whole matrices, but each process has only a part of them"
            raise Misconfigured(what, where="tensor", fix="use another optimizer, or remove `tensor` from the plan")


def _refuse_closures(optimizer: Optimizer) -> None:
    parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    if any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters):
        raise JobError(
            "optimizer",
            f"is {type(optimizer).__name__}, whose step() computes the loss several times; hasten computes one "
            "loss per step, clips its gradients and may skip the step",
            "use an optimizer whose step() needs no closure, such as torch.optim.AdamW",
        )


def _check_ownership(model: nn.Module, given: Iterable[Any], optimizers: Sequence[Optimizer]) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = Counter(id(parameter) for parameter in _held(optimizers))
    for parameter in _held(optimizers):
        if id(parameter) not in names:
            raise JobError(
                "optimizer",
                f"holds a tensor of shape {tuple(parameter.shape)} that is not a parameter of the model",
                "build it from the parameters it is given; move other trained tensors into the model",
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
            f"does not hold {_listed(missing)}, so it would not be trained",
            "give every parameter to an optimizer; to freeze one, use requires_grad_(False) or Job.parameters",
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
    """The tensors in parameters, (name, parameter) pairs, lists and groups."""
    for item in given:
        if isinstance(item, dict | list):
            yield from _flat(item["params"] if isinstance(item, dict) else item)
        else:
            yield item[1] if isinstance(item, tuple) else item


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


# ── weights that differ from the model's ────────────────────────────────────────────────────────────────────────────


class MasterWeights:
    """The float32 copies of every trainable 16-bit parameter of a model. Its gradients are moved to the copies as they
    are computed."""

    def __init__(self, model: nn.Module) -> None:
        short = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.dtype in _SHORT]
        self._pairs = [(parameter, Parameter(parameter.detach().float())) for parameter in short]
        self._master = {id(parameter): master for parameter, master in self._pairs}
        for parameter, master in self._pairs:
            parameter.register_post_accumulate_grad_hook(_mover_to(master))

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def replace(self, parameters: Iterable[Parameter]) -> list[Parameter]:
        """The same parameters, each 16-bit one replaced by its float32 copy."""
        return [self._master.get(id(parameter), parameter) for parameter in parameters]

    def hand_to(self, optimizer: Optimizer) -> None:
        """Let a new optimizer update the copies instead."""
        for group in optimizer.param_groups:
            group["params"] = self.replace(group["params"])

    def write_back(self) -> None:
        """Round the copies into the model, after an update."""
        if not self._pairs:
            return
        with torch.no_grad():
            for parameter, master in self._pairs:
                parameter.copy_(master)

    def tensors(self) -> list[Tensor]:
        """The copies themselves, in the model's order, for saving and loading."""
        return [master for _, master in self._pairs]


def _mover_to(master: Parameter) -> Callable[[Tensor], None]:
    def move(parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None

    return move


def with_modes(optimizers: Iterable[Optimizer]) -> list[Any]:
    """Those that have train() and eval()."""
    return [each for each in optimizers if all(callable(getattr(each, name, None)) for name in ("train", "eval"))]


class OptimizerModes:
    """The modes of a run's optimizers. False where none of them has modes.

    A run is in training mode from its start, and in evaluation mode only inside `evaluating`.
    """

    def __init__(self, model: nn.Module, masters: MasterWeights, optimizers: Iterable[Optimizer]) -> None:
        self._model, self._masters, self._optimizers = model, masters, with_modes(optimizers)

    def __bool__(self) -> bool:
        return bool(self._optimizers)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside the block the model holds the weights to evaluate and to keep; after it, those of training, to the
        bit. Raises what the optimizers' eval() and train() raise."""
        if not self._optimizers:
            yield
            return
        tensors = [*self._model.parameters(), *self._masters.tensors()]
        own = [each.detach().clone() for each in tensors]
        try:
            for each in self._optimizers:
                each.eval()
            self._masters.write_back()
            yield
        finally:
            for each in self._optimizers:
                each.train()
            with torch.no_grad():
                for tensor, content in zip(tensors, own, strict=True):
                    tensor.copy_(content)
