"""The job's own step in float64: the truth that gradients and updates are judged by (gradient_error.py).

The model and its batches are copied. Casts to a lower precision in the job's own code, such as images.float(), become
casts to float64, because they would round the truth.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hasten.errors import InvalidMeasurement
from hasten.facts.job import Loss

LossFunction = Callable[[nn.Module, Any], Loss | Tensor]

_HOST = torch.device("cpu")
_NARROWER = frozenset({torch.float32, torch.float16, torch.bfloat16})
_CASTS = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})


def reference_gradients(
    model: nn.Module, loss: LossFunction, batches: Sequence[Any], device: torch.device = _HOST
) -> dict[str, Tensor]:
    """Parameter name -> gradient of the mean loss over all batches together; float64, dense, on the CPU.

    device: where it is computed; it must support float64.

    The model is copied in its mode; the model and every random state of the process stay unchanged. A loss that returns
    a mean is weighted by the length of the batch's first tensor. Batch norm sees one batch at a time: give a model with
    it the full batch as one. Switch dropout off on every side. Errors of the job's own code pass through. Raises
    InvalidMeasurement for a loss that is not float64.
    """
    copied = in_float64(model, device)
    total = count = auxiliary = samples = 0
    with _undisturbed(torch.float64), Lifted():
        for position, batch in enumerate(batches):
            batch = batch_in_float64(batch, device)
            returned, size = loss(copied, batch), _length(batch)
            if isinstance(returned, Tensor):
                returned = Loss(returned * size, size)
            if returned.total.dtype != torch.float64:
                raise InvalidMeasurement(
                    f"the loss of a float64 model is {returned.total.dtype}",
                    where=f"batch {position}",
                    fix="return the loss in the dtype of the model's output",
                )
            total, count, samples = total + returned.total, count + returned.count, samples + size
            auxiliary = auxiliary if returned.auxiliary is None else auxiliary + returned.auxiliary * size
        if not isinstance(total, Tensor) or float(count) == 0:
            raise InvalidMeasurement("the batches contain no items", fix="give at least one item")
        objective = total / count + auxiliary / max(samples, 1)
        objective.backward()
    trained = ((name, each) for name, each in copied.named_parameters() if each.requires_grad)
    return {
        name: torch.zeros_like(each, device=_HOST) if each.grad is None else dense(each.grad) for name, each in trained
    }


def nearby_gradients(model: nn.Module, loss: LossFunction, batch: Any, *, terms: int, seed: int) -> dict[str, Tensor]:
    """Parameter name -> gradient of the mean loss in the model's own dtype, from weights changed at random by
    twice the rounding of sums of so many terms: random errors average out further on, that of a channel's mean does
    not. With 0 terms, from the weights themselves.

    seed: of all random numbers inside. The model and every random state stay unchanged.
    """
    copied = copy_of(model)
    with _undisturbed(torch.get_default_dtype()):
        _seed(seed)
        with torch.no_grad():
            for each in copied.parameters() if terms else ():
                if each.is_floating_point():
                    each.mul_(1 + 2 * rounding(each.dtype, math.sqrt(terms)) * torch.randn_like(each))
        _mean(loss(copied, batch)).backward()
    return {name: each.grad for name, each in copied.named_parameters() if each.grad is not None}


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _mean(returned: Loss | Tensor) -> Tensor:
    if isinstance(returned, Tensor):
        return returned
    mean = returned.total / returned.count
    return mean if returned.auxiliary is None else mean + returned.auxiliary


def rounding(dtype: torch.dtype, growth: float) -> float:
    """Relative rounding of a sum that is stored in this dtype. growth: of the sum's error over that of one term.
    Libraries sum 16-bit numbers in float32."""
    return torch.finfo(dtype).eps / 2 + torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2 * growth


def longest_sum(model: nn.Module, loss: LossFunction, batch: Any) -> int:
    """How many terms the longest sum behind one number of a gradient has: samples × positions per sample.

    A module's parameters are read once for every position of its output: its numbers divided by its channels, the
    longest dimension that it shares with a parameter.
    """
    copied = copy_of(model)
    terms = terms_counted(copied)
    with _undisturbed(torch.get_default_dtype()):
        loss(copied, batch)
    return max([_length(batch), *terms.values()])


def terms_counted(model: nn.Module) -> dict[nn.Module, int]:
    """Filled in by every forward of the model from now on: as of longest_sum, by module."""
    terms = dict[nn.Module, int]()

    def count(module: nn.Module, given: Any, output: Any) -> None:
        found = _first_tensor(output)
        if found is not None:
            sizes = {size for each in module.parameters(recurse=False) for size in each.shape}
            channels = max(sizes & set(found.shape), default=1)
            terms[module] = terms.get(module, 0) + found.numel() // max(channels, 1)

    for module in model.modules():
        if any(each.requires_grad for each in module.parameters(recurse=False)):
            module.register_forward_hook(count)
    return terms


def in_float64(model: nn.Module, device: torch.device = _HOST) -> nn.Module:
    """A copy. Tensors are converted one by one, so an accelerator never holds a second model in the old dtype."""
    memo: dict[int, Any] = {id(each): _tensor_in_float64(each, device) for each in model.buffers()}
    for each in model.parameters():
        memo[id(each)] = nn.Parameter(_tensor_in_float64(each, device), requires_grad=each.requires_grad)
    return copy_of(model, memo)


def copy_of(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy, also of layers that keep a tensor which autograd has computed, as those of the old
    torch.nn.utils.weight_norm and spectral_norm do: it is copied by its values, and computed again by their next
    forward. memo: as of copy.deepcopy."""
    memo = {} if memo is None else memo
    for module in model.modules():
        computed = (each for each in vars(module).values() if isinstance(each, Tensor) and not each.is_leaf)
        memo |= {id(each): each.detach().clone() for each in computed}
    return copy.deepcopy(model, memo)


def dense(gradient: Tensor) -> Tensor:
    """In float64, on the CPU."""
    gradient = gradient.detach()
    return (gradient if gradient.layout == torch.strided else gradient.to_dense()).to("cpu", torch.float64)


class Lifted(TorchFunctionMode):
    """Inside, casts to a lower precision become casts to float64, and what is computed of a float64 tensor and one of a
    lower precision is computed in float64: a loss reads what the model returns beside the batch."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CASTS:
            return Tensor.double(args[0])
        if func is Tensor.view:  # with a dtype it reads the same bits as other numbers
            return func(*args, **kwargs)
        if not func.__name__.endswith("_") and "out" not in kwargs:  # else it writes into one of them
            args, kwargs = _of_one_dtype(args, kwargs)
        return func(*map(_lifted, args), **{key: _lifted(value) for key, value in kwargs.items()})


def _of_one_dtype(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """float64 where one of the tensors is."""
    if not any(isinstance(each, Tensor) and each.dtype == torch.float64 for each in (*args, *kwargs.values())):
        return args, kwargs

    def wide(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.dtype in _NARROWER else value

    return [*map(wide, args)], {key: wide(value) for key, value in kwargs.items()}


def _lifted(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROWER else value


def _tensor_in_float64(tensor: Tensor, device: torch.device) -> Tensor:
    dtype = torch.float64 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(device, dtype, copy=True)


def batch_in_float64(batch: Any, device: torch.device = _HOST) -> Any:
    if isinstance(batch, Tensor):
        return _tensor_in_float64(batch, device)
    if isinstance(batch, Mapping):
        return {key: batch_in_float64(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        items = [batch_in_float64(item, device) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch


def _length(batch: Any) -> int:
    """Of the first dimension of the first tensor; 1 where there is none."""
    found = _first_tensor(batch)
    return 1 if found is None or not found.ndim else len(found)


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((found for item in items if (found := _first_tensor(item)) is not None), None)


@contextmanager
def _undisturbed(own: torch.dtype) -> Iterator[None]:
    """own: dtype of tensors that the job makes. Restores it, gradient mode and every random state."""
    dtype, python, of_numpy = torch.get_default_dtype(), random.getstate(), np.random.get_state()
    try:
        # fork_rng() without devices covers the CPU and every accelerator that has been used.
        with torch.random.fork_rng(), torch.enable_grad():  # autocast leaves float64
            torch.set_default_dtype(own)
            yield
    finally:
        torch.set_default_dtype(dtype)
        random.setstate(python)
        np.random.set_state(of_numpy)
