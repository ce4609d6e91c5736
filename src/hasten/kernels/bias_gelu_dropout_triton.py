"""Bias, GELU and dropout in Triton: one pass over memory forward, one backward, on the accelerator at hand.

bias_gelu_dropout.py says what is computed, and philox.py which numbers are drawn: the same ones to the bit. One counter
gives four of them, for columns that lie 16 apart; so a program takes four pieces of a row that belong to its counters,
and computes each counter once. Backward, a program goes along one part of the rows and keeps its sum of the gradients,
in float32: what they add up to does not depend on which program is quicker.

Source: Tillet, Kung and Cox 2019, "Triton"; Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as
1, 2, 3".
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from hasten.kernels.gelu_triton import slope, value

_COUNTERS = 256  # of a program, each of which draws for four columns
_PARTS = 64  # of the rows, at most


def forward(x: Tensor, bias: Tensor | None, seed: int, threshold: int, scale: float, approximate: str) -> Tensor:
    """x: [rows, width]. bias: [width], in any floating-point format. threshold: below which a number of 32 bits is
    dropped; 0 draws none. scale: of what is kept."""
    x = x.contiguous()
    y = torch.empty_like(x)
    rows, width = x.shape
    given = x, _or(bias, x), y, width, seed, threshold, scale
    _launch(_forward, rows, given, **_form(bias, threshold, approximate))
    return y


def backward(
    gradient: Tensor, x: Tensor, bias: Tensor | None, seed: int, threshold: int, scale: float, approximate: str
) -> tuple[Tensor, Tensor]:
    """The gradients of x, and of the bias: [width], float32."""
    gradient, x = gradient.contiguous(), x.contiguous()
    to = torch.empty_like(x)
    rows, width = x.shape
    parts = min(_PARTS, max(rows, 1))
    sums = x.new_zeros(parts, width, dtype=torch.float32)
    given = gradient, x, _or(bias, x), to, sums, rows, width, parts, seed, threshold, scale
    _launch(_backward, parts, given, **_form(bias, threshold, approximate))
    return to, sums.sum(0)


def _launch(kernel: triton.JITFunction, parts: int, given: tuple[Any, ...], **form: object) -> None:
    """parts: of the rows, one or several to a program."""
    first: Tensor = given[0]
    if first.numel():  # a grid of none is refused
        grid = (parts, triton.cdiv(first.shape[1], 4 * _COUNTERS))
        with torch.cuda.device_of(first):
            kernel[grid](*given, **form)


def _or(bias: Tensor | None, x: Tensor) -> Tensor:
    return x if bias is None else bias.contiguous()  # of which a kernel without a bias reads nothing


def _form(bias: Tensor | None, threshold: int, approximate: str) -> dict[str, object]:
    by_tanh = approximate == "tanh"
    # Triton 3.9 warns of whoever does not say whether products and sums are to be fused.
    return {
        "biased": bias is not None,
        "draws": threshold > 0,
        "by_tanh": by_tanh,
        "counters": _COUNTERS,
        "enable_fp_fusion": True,
    }


@triton.jit
def _columns(first, piece: tl.constexpr):
    """Of a piece of four: those that these counters draw for."""
    return first // 16 * 64 + piece * 16 + first % 16


@triton.jit
def _drawn(seed, row, first, draws: tl.constexpr):
    """The four numbers of each of these counters; nothing to the purpose where none are drawn."""
    none = first * 0
    a, b, c, d = none, none, none, none
    if draws:
        low, high = (row & 0xFFFFFFFF).to(tl.int32), (row >> 32).to(tl.int32)
        a, b, c, d = tl.philox(seed, first, none + low, none + high, none)
    return a, b, c, d


@triton.jit
def _kept(numbers, threshold, scale):
    """What each is multiplied with: by nothing, where it is dropped."""
    return tl.where(numbers.to(tl.int64) >= threshold, scale, 0.0)


@triton.jit
def _shifted(x, bias, row, columns, width, there, biased: tl.constexpr):
    numbers = tl.load(x + row * width + columns, mask=there).to(tl.float32)
    if biased:
        numbers += tl.load(bias + columns, mask=there).to(tl.float32)
    return numbers


@triton.jit(do_not_specialize=["seed", "threshold"])
def _forward(
    x, bias, y, width, seed, threshold, scale,
    biased: tl.constexpr, draws: tl.constexpr, by_tanh: tl.constexpr, counters: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * counters + tl.arange(0, counters)
    drawn = _drawn(seed, row, first, draws)
    for piece in tl.static_range(4):
        columns = _columns(first, piece)
        numbers = _shifted(x, bias, row, columns, width, columns < width, biased)
        found = value(numbers, by_tanh) * _kept(drawn[piece], threshold, scale)
        tl.store(y + row * width + columns, found.to(y.dtype.element_ty), mask=columns < width)


@triton.jit
def _gradient(
    gradient, x, bias, to, row, columns, width, numbers, threshold, scale,
    biased: tl.constexpr, by_tanh: tl.constexpr,
):  # fmt: skip
    there = columns < width
    shifted = _shifted(x, bias, row, columns, width, there, biased)
    given = tl.load(gradient + row * width + columns, mask=there, other=0.0).to(tl.float32)
    found = tl.where(there, given * _kept(numbers, threshold, scale) * slope(shifted, by_tanh), 0.0)
    tl.store(to + row * width + columns, found.to(to.dtype.element_ty), mask=there)
    return found


@triton.jit(do_not_specialize=["seed", "threshold"])
def _backward(
    gradient, x, bias, to, sums, rows, width, parts, seed, threshold, scale,
    biased: tl.constexpr, draws: tl.constexpr, by_tanh: tl.constexpr, counters: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * counters + tl.arange(0, counters)
    a, b, c, d = _columns(first, 0), _columns(first, 1), _columns(first, 2), _columns(first, 3)
    of_a, of_b = tl.zeros((counters,), tl.float32), tl.zeros((counters,), tl.float32)
    of_c, of_d = tl.zeros((counters,), tl.float32), tl.zeros((counters,), tl.float32)
    start = rows * part // parts
    for step in range(rows * (part + 1) // parts - start):
        row = start + step
        for_a, for_b, for_c, for_d = _drawn(seed, row, first, draws)
        of_a += _gradient(gradient, x, bias, to, row, a, width, for_a, threshold, scale, biased, by_tanh)
        of_b += _gradient(gradient, x, bias, to, row, b, width, for_b, threshold, scale, biased, by_tanh)
        of_c += _gradient(gradient, x, bias, to, row, c, width, for_c, threshold, scale, biased, by_tanh)
        of_d += _gradient(gradient, x, bias, to, row, d, width, for_d, threshold, scale, biased, by_tanh)
    sums += part * width
    tl.store(sums + a, of_a, mask=a < width)
    tl.store(sums + b, of_b, mask=b < width)
    tl.store(sums + c, of_c, mask=c < width)
    tl.store(sums + d, of_d, mask=d < width)
