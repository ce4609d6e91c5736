"""A job's loss function from a torch loss, for batches of (input, target).

The count is what makes accumulation exact, so it is taken from the loss itself: cross-entropy counts the targets that
are not ignored (by their class weights, where it has such), element-wise losses count elements, and any other function
is taken as a mean over the batch's first dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.errors import JobError
from hasten.facts.job import describe
from hasten.facts.loss import Loss

_CLASS_LOSSES = (functional.cross_entropy, functional.nll_loss)
_CLASS_MODULES = {nn.CrossEntropyLoss: functional.cross_entropy, nn.NLLLoss: functional.nll_loss}
_ELEMENT_LOSSES = (
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
    functional.soft_margin_loss,
    functional.poisson_nll_loss,
)
_ELEMENT_MODULES = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.SoftMarginLoss,
    nn.PoissonNLLLoss,
)
Measure = Callable[[Tensor, Tensor], tuple[Tensor, "Tensor | float"]]


def supervised(loss: Callable[..., Tensor] | nn.Module) -> Callable[[nn.Module, Any], Loss]:
    """(model, batch) -> Loss, where batch is (input, target) and the loss is of (model(input), target).

    loss: a function such as torch.nn.functional.cross_entropy, a functools.partial of one, or a module such as
        torch.nn.CrossEntropyLoss(label_smoothing=0.1). A reduction of "none" is refused.
    """
    measure = _measurer(loss)

    def supervised_loss(model: nn.Module, batch: Any) -> Loss:
        features, target = _pair(batch)
        prediction = model(features)
        total, count = measure(prediction, target)
        return Loss(total, count, prediction=prediction, target=target)

    return supervised_loss


def _measurer(loss: Callable[..., Tensor] | nn.Module) -> Measure:
    if not callable(loss) or isinstance(loss, type):
        raise JobError("loss", f"supervised was given {describe(loss)}", "write supervised(F.cross_entropy)")
    function, arguments = _taken_apart(loss)
    if arguments.get("reduction", "mean") != "mean":
        raise JobError(
            "loss",
            f"supervised was given a loss with reduction={arguments['reduction']!r}",
            "leave reduction out; for an own reduction write a function that returns hasten.Loss(total, count)",
        )
    if function in _CLASS_LOSSES:
        return _class_measure(function, arguments)
    if function in _ELEMENT_LOSSES or isinstance(function, _ELEMENT_MODULES):
        return partial(_mean_of_elements, loss)
    return partial(_mean_of_samples, loss)


def _taken_apart(loss: Any) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """The function under partials and torch's class-loss modules, with the keyword arguments it is called with."""
    if isinstance(loss, partial) and not loss.args:
        function, arguments = _taken_apart(loss.func)
        return function, arguments | loss.keywords
    if type(loss) in _CLASS_MODULES:
        names = ("weight", "ignore_index", "reduction", "label_smoothing")
        return _CLASS_MODULES[type(loss)], {name: getattr(loss, name) for name in names if hasattr(loss, name)}
    return loss, {"reduction": loss.reduction} if isinstance(loss, nn.Module) and hasattr(loss, "reduction") else {}


def _class_measure(function: Callable[..., Tensor], arguments: dict[str, Any]) -> Measure:
    ignored: int = arguments.get("ignore_index", -100)
    weight: Tensor | None = arguments.get("weight")
    summed = partial(function, **(arguments | {"reduction": "sum"}))
    moved: dict[torch.device, Tensor] = {}

    def plain(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        total = summed(prediction, target)
        return total, _probability_rows(target) if target.is_floating_point() else (target != ignored).sum()

    def weighted(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        assert weight is not None
        if prediction.device not in moved:
            moved[prediction.device] = weight.to(prediction.device)
        here = moved[prediction.device]
        total = summed(prediction, target, weight=here)
        if target.is_floating_point():
            return total, _probability_rows(target)
        counted = target != ignored
        return total, here[target.where(counted, 0)].mul(counted).sum()

    return plain if weight is None else weighted


def _probability_rows(target: Tensor) -> int:
    """Targets that are class probabilities, the class dimension second: torch's mean divides by the rows."""
    return target.numel() // target.shape[1] if target.dim() > 1 else 1


def _mean_of_elements(loss: Callable[..., Tensor], prediction: Tensor, target: Tensor) -> tuple[Tensor, float]:
    elements = torch.broadcast_shapes(prediction.shape, target.shape).numel()
    return loss(prediction, target) * elements, elements


def _mean_of_samples(loss: Callable[..., Tensor], prediction: Tensor, target: Tensor) -> tuple[Tensor, float]:
    samples = len(target)
    return loss(prediction, target) * samples, samples


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    length = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
    raise JobError(
        "loss",
        f"supervised needs batches of (input, target), and got a {type(batch).__name__}{length}",
        "write your own: def loss(model, batch): ...; return hasten.Loss(total, count)",
    )
