"""How an operator of hasten's own becomes one of torch's: named, known to compilers, and sent to the form that a tensor
can take.

An operator has a plain form in torch's own functions, for any device and format. Its compiled form is for float32 and
bfloat16 on a processor, and is one pass over memory. Where it cannot be compiled, the plain form takes its place.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hasten.kernels.compiled import CannotCompile, compiled

SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}  # as the functions of a library end
LIBRARY = torch.library.Library("hasten", "FRAGMENT")  # torch forgets what it holds with it


class Compiled:
    """The functions that a C++ file makes, compiled when the first of them is asked for.

    lacking: what a processor may lack that they need. The file then has a function "there" that says whether it has it.
    """

    def __init__(self, source: Path, *, lacking: str | None = None) -> None:
        self._source, self._lacking = source, lacking

    @functools.cached_property
    def _library(self) -> ctypes.CDLL | str:
        try:
            library = compiled(self._source)
        except CannotCompile as reason:
            return str(reason)
        if self._lacking is not None and not library.there():
            return f"this processor lacks {self._lacking}"
        return library

    def why_plain(self) -> str | None:
        """Why the compiled form is not used here; None where it is. Compiles on the first call in a process."""
        return self._library if isinstance(self._library, str) else None

    def takes(self, *tensors: Tensor) -> bool:
        """Whether they are of one format that it knows, and it is there."""
        known = tensors[0].dtype in SUFFIXES and all(each.dtype == tensors[0].dtype for each in tensors)
        return known and self.why_plain() is None

    def __call__(self, name: str, *given: Tensor | int | float | None) -> None:
        """Call the function of this name, for the first tensor's format. It is given the memory of tensors, which are
        dense, or none for None, whole numbers as int64, and others as float."""
        first = next(each for each in given if isinstance(each, Tensor))
        getattr(self._library, f"{name}_{SUFFIXES[first.dtype]}")(*map(_as_c, given))


def _as_c(value: Tensor | int | float | None) -> Any:
    if value is None or isinstance(value, Tensor):
        return ctypes.c_void_p(None if value is None else value.data_ptr())
    return ctypes.c_int64(value) if isinstance(value, int) else ctypes.c_float(value)


def as_a_product(tensor: Tensor) -> Tensor:
    """Cast as autocast would for a matrix product."""
    device = tensor.device.type
    if not torch.is_autocast_enabled(device) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def laid_out_as(like: Tensor, tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it in the order in memory of one that is dense."""
    return tensor if tensor.stride() == like.stride() else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def in_float32(parameter: Tensor | None, absent: float, like: Tensor) -> Tensor:
    """What a compiled form takes for a vector of a parameter: one number for each column, that one where it is None."""
    if parameter is None:
        return like.new_full(like.shape[-1:], absent, dtype=torch.float32)
    return parameter.float().contiguous()


def check_columns(x: Tensor, **parameters: Tensor | None) -> None:
    """Raise ValueError unless each that is there has one number for each column of x."""
    for name, given in parameters.items():
        if given is not None and given.shape != x.shape[-1:]:
            raise ValueError(f"{name} is of shape {tuple(given.shape)}, and that of x ends in {tuple(x.shape[-1:])}")


def of_parameter(gradient: Tensor | None, parameter: Tensor | None, like: Tensor) -> Tensor:
    """What an operator gives for a parameter's gradient: in the parameter's format; without numbers where there is no
    parameter, for its outputs are tensors."""
    return like.new_empty(0) if gradient is None or parameter is None else gradient.to(parameter.dtype)


def fake_of_parameter(parameter: Tensor | None, like: Tensor) -> Tensor:
    """The same, for compilers."""
    return like.new_empty(0) if parameter is None else torch.empty_like(parameter)


def float32_room(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def parts_of(rows: int) -> int:
    """How many parts of the rows are summed by themselves: whatever the threads, or these would decide the numbers."""
    return min(64, -(-rows // 32))


def differentiable_once(name: str) -> None:
    """Let <name>_backward raise where it is differentiated itself, for a gradient of zeros would be no answer."""

    def refuse(ctx: Any, *gradients: Tensor) -> None:
        raise RuntimeError(
            f"hasten's {name} is differentiable once, and this is a gradient of its gradient; leave fused_operators out"
        )

    torch.library.register_autograd(f"hasten::{name}_backward", refuse, lib=LIBRARY)


def operator(
    schema: str, *, plain: Callable[..., Any], on_cpu: Callable[..., Any], fake: Callable[..., Any]
) -> Callable[..., Any]:
    """Define torch.ops.hasten.<name>; what calls it, and raises RuntimeError in forward-mode differentiation, where
    torch takes what an operator gives for constant.

    plain: the form for any device. on_cpu: the one for a processor, which calls the plain one where it has to. fake: an
    empty tensor of the shape, the format and the strides of what comes out, for compilers.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, plain, "CompositeExplicitAutograd")
    LIBRARY.impl(name, on_cpu, "CPU")
    torch.library.register_fake(f"hasten::{name}", fake, lib=LIBRARY)
    defined = getattr(torch.ops.hasten, name).default

    def called(*given: Any) -> Any:
        if forward_ad._current_level >= 0:
            raise RuntimeError(f"hasten's {name} has no forward-mode derivative; leave fused_operators out")
        return defined(*given)

    return called
