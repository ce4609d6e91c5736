"""A job's loss function from a torch loss, for batches of (input, target).

The count is taken from the loss itself, which makes accumulation exact: cross-entropy counts the targets that are not
ignored (by their class weights), element-wise losses count elements, and any other function is taken as a mean over the
batch's first dimension. Tensors that a loss holds are not moved: each device on which they are not gets a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.errors import JobError
from hasten.facts.job import Loss, describe
from hasten.training.step_parts.losses import at_least_float32, described

_CLASS_MODULES = {nn.CrossEntropyLoss: functional.cross_entropy, nn.NLLLoss: functional.nll_loss}
_ELEMENT_MODULES = {
    nn.MSELoss: functional.mse_loss,
    nn.L1Loss: functional.l1_loss,
    nn.SmoothL1Loss: functional.smooth_l1_loss,
    nn.HuberLoss: functional.huber_loss,
    nn.BCELoss: functional.binary_cross_entropy,
    nn.BCEWithLogitsLoss: functional.binary_cross_entropy_with_logits,
    nn.SoftMarginLoss: functional.soft_margin_loss,
    nn.PoissonNLLLoss: functional.poisson_nll_loss,
}
_CLASS_LOSSES, _ELEMENT_LOSSES = (*_CLASS_MODULES.values(),), (*_ELEMENT_MODULES.values(),)
Measure = Callable[[Any, Any, Any], tuple[Tensor, "Tensor | float"]]
"""(prediction, target, input) -> total and count."""
OnDevice = Callable[[torch.device], Callable[..., Tensor]]
"""(device) -> the loss with its tensors there."""


def supervised(loss: Callable[..., Tensor] | nn.Module) -> Callable[[nn.Module, Any], Loss]:
    """(model, batch) -> Loss, where batch is (input, target) and the loss is of (model(input), target).

    loss: a function such as torch.nn.functional.cross_entropy, a functools.partial of one, or a module such as
        torch.nn.CrossEntropyLoss(label_smoothing=0.1). Tensors that it holds, such as class weights, are used on the
        prediction's device, and stay where they are for the caller. Predictions of 16 bits are summed in float32.

    Raises JobError for a reduction other than a mean, and for a loss with parameters to train: they belong into the
    model.
    """
    loss_on = _on_each_device(loss)
    measure = _measurer(loss, loss_on)

    def supervised_loss(model: nn.Module, batch: Any) -> Loss:
        features, target = _pair(batch)
        prediction = model(features)
        if not hasattr(prediction, "device"):
            raise _no_tensor(prediction)
        total, count = measure(prediction, target, features)
        return Loss(total, count, prediction=prediction, target=target)

    supervised_loss.loss_on = loss_on  # pyright: ignore[reportFunctionMemberAccess]: read by declared_state.py
    return supervised_loss


def _measurer(loss: Callable[..., Tensor] | nn.Module, loss_on: OnDevice) -> Measure:
    if not callable(loss) or isinstance(loss, type):
        raise JobError("loss", f"supervised was given {describe(loss)}", "write supervised(F.cross_entropy)")
    _refuse_parameters(loss)
    function, arguments = _unwrapped(loss)
    _refuse_other_reductions(arguments)
    if function in _CLASS_LOSSES:
        return _class_measure(function, arguments)
    mean = partial(_call_on_its_device, loss_on)
    if function in _ELEMENT_LOSSES or _computes_as(_ELEMENT_MODULES, function):
        return partial(_mean_of_elements, mean)
    return partial(_mean_of_samples, mean)


def _refuse_parameters(loss: Any) -> None:
    named = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    trained = [name for name, parameter in named if parameter.requires_grad]
    if trained:
        raise JobError(
            "loss",
            f"supervised was given a loss whose {trained[0]} requires a gradient, but no optimizer would update it",
            "make it a part of the model and write your own loss(model, batch); or requires_grad_(False)",
        )


def _refuse_other_reductions(arguments: dict[str, Any]) -> None:
    # batchmean, of the Kullback-Leibler divergence, is the mean over the first dimension
    if (reduction := arguments.get("reduction", "mean")) not in ("mean", "batchmean"):
        raise JobError(
            "loss",
            f"supervised was given a loss with reduction={reduction!r}",
            "remove reduction; for another one write a function that returns hasten.Loss(total, count)",
        )


def _unwrapped(loss: Any) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """The function under partials and torch's class-loss modules, with the keyword arguments it is called with."""
    if isinstance(loss, partial) and not loss.args:
        function, arguments = _unwrapped(loss.func)
        return function, arguments | loss.keywords
    kind = _computes_as(_CLASS_MODULES, loss)
    if kind is not None:
        names = ("weight", "ignore_index", "reduction", "label_smoothing")
        return _CLASS_MODULES[kind], {name: getattr(loss, name) for name in names if hasattr(loss, name)}
    return loss, {"reduction": loss.reduction} if isinstance(loss, nn.Module) and hasattr(loss, "reduction") else {}


def _computes_as(kinds: Iterable[type[nn.Module]], loss: Any) -> type[nn.Module] | None:
    """The kind that a module is; None for one with a forward of its own, which may be anything."""
    return next((kind for kind in kinds if isinstance(loss, kind) and type(loss).forward is kind.forward), None)


def _class_measure(function: Callable[..., Tensor], arguments: dict[str, Any]) -> Measure:
    ignored: int = arguments.get("ignore_index", -100)
    weight: Tensor | None = arguments.get("weight")
    changes = {"reduction": "sum"} if weight is None else {"reduction": "sum", "weight": at_least_float32(weight)}
    summed_on = _on_each_device(partial(function, **(arguments | changes)))

    def measure(prediction: Tensor, target: Tensor, features: Any) -> tuple[Tensor, Tensor | float]:
        summed: Any = summed_on(prediction.device)
        if target.is_floating_point():  # class probabilities, the class dimension second: torch divides by the rows
            prediction = at_least_float32(prediction)
            rows = target.numel() // target.shape[1] if target.dim() > 1 else 1
            return summed(prediction, target.to(prediction.dtype)), rows
        target = target.long()  # torch takes bytes for classes too; as an index they would be a mask
        total = summed(at_least_float32(prediction), target)
        counted = target != ignored
        if weight is None:
            return total, counted.sum()
        return total, summed.keywords["weight"][target.where(counted, 0)].mul(counted).sum()

    return measure


def _call_on_its_device(loss_on: OnDevice, prediction: Any, target: Any) -> Tensor:
    return loss_on(prediction.device)(prediction, target)


def _mean_of_elements(
    loss: Callable[..., Tensor], prediction: Tensor, target: Tensor, features: Any
) -> tuple[Tensor, float]:
    mean = loss(prediction, target)
    elements = torch.broadcast_shapes(prediction.shape, target.shape).numel()
    return at_least_float32(mean) * elements, elements


def _mean_of_samples(loss: Callable[..., Tensor], prediction: Any, target: Any, features: Any) -> tuple[Tensor, float]:
    samples = _samples_in(features, target)
    return at_least_float32(loss(prediction, target)) * samples, samples


def _samples_in(features: Any, target: Any) -> int:
    """The batch's first dimension, of a tensor where there is one; a list of other things has one for each sample."""
    for value in (target, features):
        if isinstance(value, Tensor):
            return len(value)
    while isinstance(target, Mapping) and target:
        target = next(iter(target.values()))
    return len(target)


def _no_tensor(prediction: Any) -> JobError:
    part = ".logits"
    if isinstance(prediction, Mapping):
        part = f"[{next(iter(prediction), 'logits')!r}]"
    elif hasattr(prediction, "__getitem__"):
        part = "[0]"
    fix = (
        "write a loss of your own that chooses one: def loss(model, batch): "
        f"prediction = model(batch[0]){part}; return torch.nn.functional.cross_entropy(prediction, batch[1])"
    )
    if prediction is None:
        fix = "let the model's forward() return its output"
    return JobError("loss", f"supervised needs one tensor, and the model returned {described(prediction)}", fix)


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    length = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
    raise JobError(
        "loss",
        f"supervised needs batches of (input, target), and got a {type(batch).__name__}{length}",
        "write your own: def loss(model, batch): ...; return hasten.Loss(total, count)",
    )


# ── a loss on each device ───────────────────────────────────────────────────────────────────────────────────────────


def _on_each_device(loss: Callable[..., Tensor]) -> OnDevice:
    """loss: a module, or a partial that holds modules or tensors. The loss itself where nothing must be copied."""

    @cache
    def on(device: torch.device) -> Callable[..., Tensor]:
        with torch.inference_mode(False):  # the first use may be in it, and its tensors cannot be trained with
            return _moved(loss, device)

    return on


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, partial):
        keywords = {name: _moved(each, device) for name, each in value.keywords.items()}
        return partial(_moved(value.func, device), *(_moved(each, device) for each in value.args), **keywords)
    if isinstance(value, nn.Module):
        is_there = all(each.device == device for each in (*value.parameters(), *value.buffers()))
        return value if is_there else copy.deepcopy(value).to(device)
    return value.to(device) if isinstance(value, Tensor) else value
