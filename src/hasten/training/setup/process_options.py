"""Apply a plan's process-wide settings, and restore the former ones afterwards.

Two of them cannot be restored completely, because their present state cannot be read: compute threads that started
while denormals were flushed still flush them, and glibc no longer adapts its thresholds to allocation sizes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from hasten.techniques.setup import ProcessOptions
from hasten.training.setup.torch_allocator import allocator_setter, allocator_settings

# From glibc's malloc.h, with the defaults that mallopt(3) documents.
_M_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD = -1, 128 * 1024
_M_MMAP_MAX, _DEFAULT_MMAP_MAX = -4, 65536
_NEVER_TRIM, _NEVER_MAP = -1, 0

_ALLOCATOR_VARIABLES = frozenset({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})
_VECTOR_FUNCTIONS = (
    *("abs", "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1"),
    *("lgamma", "log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)


def make_first_calls() -> None:
    """Call every function of oneMKL's vector mathematics once, from one thread, before the user's code computes
    anything in this process; calling it again is harmless.

    On x86 processors that library chooses a function's kernel at its first call. When several threads make it at once,
    one may use a kernel of low accuracy for that call only, and the same job, started twice, could train differently.
    Seen with torch 2.13, and reported for 2.10 in https://github.com/pytorch/pytorch/issues/188792
    """
    with torch.inference_mode():
        for dtype in (torch.float32, torch.float64):  # the others are computed without that library
            one = torch.ones(1, dtype=dtype, device="cpu")
            for name in _VECTOR_FUNCTIONS:
                getattr(torch, name)(one)


@contextmanager
def process_options(options: ProcessOptions) -> Iterator[list[str]]:
    """Apply every option that is not None to this process, and restore the former state on leaving.

    Yields what could not be set, or only in part, one sentence each with its reason; complete on entry.
    """
    notices: list[str] = []
    with ExitStack() as undo:
        notices += _set_environment(options.environment, undo)
        if options.threads is not None:
            undo.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(options.threads)
        notices += _set_denormals(options.flush_denormals, undo)
        notices += _set_float32_matmul(options.float32_matmul, undo)
        notices += _set_cudnn("allow_tf32", options.cudnn_tf32, undo)
        notices += _set_cudnn("benchmark", options.cudnn_benchmark, undo)
        notices += _keep_freed_memory(options.keep_freed_memory, undo)
        yield notices


def _set_environment(environment: dict[str, str], undo: ExitStack) -> Iterator[str]:
    for name, value in environment.items():
        before = os.environ.get(name)
        if before not in (None, value):
            yield f"{name} was {before}; during this run it is {value}"
        if torch.cuda.is_initialized():
            yield (
                f"{name} = {value} is set late, because CUDA is already in use: what was set up before is unchanged. "
                "Set the variable in the shell, before the process starts"
            )
        if name in _ALLOCATOR_VARIABLES:
            yield from _set_allocator(name, value, undo)
        undo.callback(_restore_variable, name, before)
        os.environ[name] = value


def _restore_variable(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before


def _set_allocator(name: str, settings: str, undo: ExitStack) -> Iterator[str]:
    """torch may have read the variable when it was imported, which was before now, so it is set in torch as well."""
    set_allocator = allocator_setter()
    if set_allocator is None:
        yield f"{name} may have no effect: torch {torch.__version__} cannot take it after it was imported"
        return
    before = allocator_settings()
    undo.callback(set_allocator, os.environ.get(name, "") if before is None else before)
    set_allocator(settings)


def _set_denormals(flush: bool | None, undo: ExitStack) -> Iterator[str]:
    if flush is None:
        return
    undo.callback(torch.set_flush_denormal, _is_flushing())
    if not torch.set_flush_denormal(flush):
        yield f"flush_denormals = {flush} has no effect: this processor or this build of torch has no such mode"


def _is_flushing() -> bool:
    """Bits are compared, because a flushing processor calls any denormal number equal to zero."""
    smallest = torch.ones(1, dtype=torch.int32).view(torch.float32)
    return not (smallest * 1.0).view(torch.int32).any()


def _set_float32_matmul(precision: str | None, undo: ExitStack) -> Iterator[str]:
    if precision is None:
        return
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:
        yield f"float32 matrix products stay as this process has set them through fp32_precision, not {precision}"
        return
    undo.callback(torch.set_float32_matmul_precision, before)
    torch.set_float32_matmul_precision(precision)


def _set_cudnn(flag: str, value: bool | None, undo: ExitStack) -> Iterator[str]:
    if value is None:
        return
    cudnn: Any = torch.backends.cudnn
    try:
        before = getattr(cudnn, flag)
    except RuntimeError:
        yield f"cudnn.{flag} stays as this process has set it through fp32_precision, not {value}"
        return
    undo.callback(setattr, cudnn, flag, before)
    setattr(cudnn, flag, value)


def _keep_freed_memory(keep: bool | None, undo: ExitStack) -> Iterator[str]:
    """Every block comes from the heap, and the heap never shrinks. Not through M_MMAP_THRESHOLD, which old versions of
    glibc refuse above 32 MiB, the size of one large activation."""
    if not keep:
        return
    try:
        library = ctypes.CDLL(None)
        set_option, trim = library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):
        yield "keep_freed_memory has no effect: this system's C library is not glibc and has no mallopt"
        return
    undo.callback(trim, 0)
    undo.callback(set_option, _M_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
    undo.callback(set_option, _M_MMAP_MAX, _DEFAULT_MMAP_MAX)
    if not (set_option(_M_MMAP_MAX, _NEVER_MAP) and set_option(_M_TRIM_THRESHOLD, _NEVER_TRIM)):
        yield "keep_freed_memory has no effect: the C library refused the setting"
