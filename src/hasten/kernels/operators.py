"""Register an operator of hasten with torch: its name, its gradient, its form for compilers, and its form on each
device.

An operator has a plain form, written with torch's own functions, for any device and dtype. Its C++ form, for float32
and bfloat16 on a processor, passes over memory once. The plain form is used where the C++ form cannot be compiled.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.kernels.native_code import CannotCompile, compiled
from hasten.kernels.triton_form import TritonForm

SUFFIXES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}  # how function names in a library end
LIBRARY = torch.library.Library("hasten", "FRAGMENT")  # torch drops the operators when this object is collected


class Compiled:
    """The functions of a C++ file, which is compiled when the first of them is needed.

    lacking: the instructions that the file needs, in words. The file then has a function "there" that returns whether
    the processor has them.
    """

    def __init__(self, source: Path, *, lacking: str | None = None) -> None:
        self._source, self._lacking = source, lacking

    @functools.cached_property
    def library(self) -> ctypes.CDLL | str:
        try:
            library = compiled(self._source)
        except CannotCompile as reason:
            return str(reason)
        if self._lacking is not None and not library.there():
            return f"this processor lacks {self._lacking}"
        return library

    def why_plain(self) -> str | None:
        """Why the plain form is used here; None where the C++ form is. The first call in a process compiles."""
        return self.library if isinstance(self.library, str) else None

    def takes(self, *tensors: Tensor) -> bool:
        """Whether the library is there and knows the one dtype that all tensors have."""
        known = tensors[0].dtype in SUFFIXES and all(each.dtype == tensors[0].dtype for each in tensors)
        return known and self.why_plain() is None

    def __call__(self, name: str, *given: Tensor | int | float | None) -> None:
        """Call the function of this name for the first tensor's dtype.

        Dense tensors are passed as pointers to their memory, None as a null pointer, integers as int64 and other
        numbers as float.
        """
        first = next(each for each in given if isinstance(each, Tensor))
        getattr(self.library, f"{name}_{SUFFIXES[first.dtype]}")(*map(_as_c, given))


def _as_c(value: Tensor | int | float | None) -> Any:
    if value is None or isinstance(value, Tensor):
        return ctypes.c_void_p(None if value is None else value.data_ptr())
    return ctypes.c_int64(value) if isinstance(value, int) else ctypes.c_float(value)


def why_plain_on(device: torch.device, *, cpp: Compiled, triton: TritonForm | None = None) -> str | None:
    """Why an operator with these forms uses its plain form on the device; None where one of them is used."""
    if device.type == "cpu":
        return cpp.why_plain()
    if device.type == "cuda" and triton is not None:
        return triton.why_plain(device)
    return f"these operators have no form for {device.type}"


def laid_out_as(like: Tensor, tensor: Tensor) -> Tensor:
    """The tensor with the strides of `like`, which is dense; a copy where its own strides differ."""
    return tensor if tensor.stride() == like.stride() else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def dense_like(x: Tensor) -> Tensor:
    """An empty tensor of this shape and dtype, row by row in memory."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def operator(
    schema: str,
    *,
    on_cpu: Callable[..., Any],
    fake: Callable[..., Any],
    plain: Callable[..., Any] | None = None,
    on_cuda: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Define torch.ops.hasten.<name> and return a function that calls it.

    plain: the form for any device; None where no other calls it. on_cpu, on_cuda: the forms for these.
    fake: returns an empty tensor with the shape, dtype and strides of the result, for compilers.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    if plain is not None:
        LIBRARY.impl(name, plain, "CompositeExplicitAutograd")
    LIBRARY.impl(name, on_cpu, "CPU")
    if on_cuda is not None:
        LIBRARY.impl(name, on_cuda, "CUDA")
    torch.library.register_fake(f"hasten::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.hasten, name).default


def differentiable(name: str, differentiate: Callable[..., Any], save: Callable[..., None]) -> None:
    """Give an operator a gradient, and make <name>_backward raise when it is itself differentiated: torch would return
    zeros. save: (context, inputs, output), after a forward. differentiate: (context, gradients) -> of the inputs."""
    torch.library.register_autograd(f"hasten::{name}", differentiate, setup_context=save, lib=LIBRARY)

    def refuse(ctx: Any, *gradients: Tensor) -> None:
        raise RuntimeError(f"hasten's {name} does not support double backward; remove fused_operators from the plan")

    torch.library.register_autograd(f"hasten::{name}_backward", refuse, lib=LIBRARY)
