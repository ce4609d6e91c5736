"""GELU and softmax in Triton compute what torch computes. Without an accelerator Triton's interpreter runs them."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nan
from torch.nn import functional
from torch.testing import assert_close

from hasten.kernels.activation import gelu
from hasten.kernels.softmax import softmax
from hasten.kernels.triton_form import TritonForm
from support.kernels.triton_runs import DTYPES, IN_TRITON, NOT_INSTALLED, interpreted, memory_instructions

INF = torch.inf
GELU, SOFTMAX = "hasten.kernels.activation.gelu_triton", "hasten.kernels.softmax.softmax_triton"
VARIANTS = ("none", "tanh")
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def for_gelu(dtype):
    """The first is wider than one program of the grid."""
    x = (3 * torch.randn(37, 61)).to(dtype)
    huge = torch.tensor([1e4, -1e4, 88.0, -88.0, 0.0, INF]).to(dtype)
    some_nan = torch.tensor([1.0, nan, -1.0]).to(dtype)
    return {"many": x, "none": x[:0], "transposed": x.t(), "strided": x[:, ::2], "huge": huge, "nan": some_nan}


def for_softmax(dtype):
    """A block has 4096 columns at most."""
    x, wide, masked = 3 * torch.randn(5, 61), 3 * torch.randn(3, 9001), torch.randn(4, 9001)
    masked[0, :8500], masked[1, 1:], masked[2, ::2], masked[3] = -INF, -INF, -INF, -INF  # more than a block
    infinite = [[INF, 0, 1], [1, INF, INF], [0, nan, -INF], [nan] * 3, [-INF, nan, -INF], [0, 1, 2]]
    made = {
        "rows": x,
        "one number": x[:1, :1],
        "no rows": x[:0],
        "no columns": x[:, :0],
        "wide": wide,
        "wide, in order": wide.sort()[0],  # the maximum of every block exceeds those before
        "transposed": x.t(),
        "three dimensions": torch.randn(2, 3, 17),
        "masked": masked,
        "far apart": torch.tensor([[1e4, 1e4 - 64, -1e4], [-3e38, 3e38, 0], [88, -88, 0]]),
        "infinite and NaN": torch.tensor(infinite),
    }
    return {name: each.to(dtype) for name, each in made.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """(inputs, forward, backward) by case. Backward of softmax takes torch's own result."""
    torch.manual_seed(0)
    given, calls = {}, {}
    for dtype in DTYPES:
        for name, x in for_gelu(dtype).items():
            for variant in VARIANTS:
                case, gradient = f"gelu {variant} {dtype} {name}", torch.randn(x.shape).to(dtype)
                given[case] = x, gradient
                calls[f"forward {case}"] = GELU, "forward", (x, variant)
                calls[f"backward {case}"] = GELU, "backward", (gradient, x, variant)
        for name, x in for_softmax(dtype).items():
            case, gradient, y = f"softmax {dtype} {name}", torch.randn(x.shape).to(dtype), torch.softmax(x, -1)
            given[case] = x, gradient, y
            calls[f"forward {case}"] = SOFTMAX, "forward", (x,)
            calls[f"backward {case}"] = SOFTMAX, "backward", (gradient, y)
    found = interpreted(calls, tmp_path_factory.mktemp("interpreted"))
    return {case: (each, found[f"forward {case}"], found[f"backward {case}"]) for case, each in given.items()}


@every_dtype
@pytest.mark.parametrize("variant", VARIANTS)
def test_gelu_is_within_two_units_of_the_exact_numbers(results, dtype, variant):
    for name in for_gelu(torch.float32):
        (x, gradient), *found = results[f"gelu {variant} {dtype} {name}"]
        exact = x.double().requires_grad_()
        wanted = functional.gelu(exact, approximate=variant)
        wanted.backward(gradient.double())
        for mine, other in zip(found, (wanted.detach(), exact.grad), strict=True):
            assert (mine.dtype, mine.shape, mine.stride()) == (dtype, x.shape, torch.empty_like(x).stride())
            usual = other.isfinite()  # of ∞ torch gives a derivative of NaN
            allowed = 2 * torch.finfo(dtype).eps * max([1.0, *other[usual].abs().tolist()])
            assert_close(mine.double()[usual], other[usual], rtol=0, atol=allowed)
            assert mine[x.isnan()].isnan().all()


@every_dtype
def test_softmax_is_within_a_unit_of_the_exact_numbers(results, dtype):
    for name in for_softmax(torch.float32):
        (x, gradient, y), *found = results[f"softmax {dtype} {name}"]
        mean = (gradient.double() * y.double()).sum(-1, keepdim=True)
        wanted = torch.softmax(x.double(), -1), y.double() * (gradient.double() - mean)
        for mine, other in zip(found, wanted, strict=True):
            assert (mine.dtype, mine.shape, mine.is_contiguous()) == (dtype, x.shape, True)
            assert_close(mine.double(), other, rtol=max(torch.finfo(dtype).eps, 2e-6), atol=5e-7, equal_nan=True)
    (x, *_), y, _ = results[f"softmax {dtype} masked"]
    assert not y[:3][x[:3].isneginf()].any()


@pytest.mark.parametrize("number", IN_TRITON)
@pytest.mark.parametrize(
    ("module", "kernel", "tensors", "constants", "count", "warps"),
    [
        *((GELU, "_forward", ["x", "y"], {"by_tanh": each, "block": 1024}, "count", 4) for each in (False, True)),
        *(
            (GELU, "_backward", ["gradient", "x", "to"], {"by_tanh": each, "block": 1024}, "count", 4)
            for each in (False, True)
        ),
        (SOFTMAX, "_forward", ["x", "y"], {"block": 4096}, "width", 16),
        (SOFTMAX, "_backward", ["gradient", "y", "to"], {"block": 256}, "width", 1),
    ],
)
def test_kernels_compile_and_read_16_bytes_at_a_time(
    module, kernel, tensors, constants, count, warps, number, tmp_path
):
    kinds = dict.fromkeys(tensors, f"*{number}") | {count: "i32"}
    found = memory_instructions(module, kernel, kinds, constants, tmp_path, warps)
    assert len(found) >= len(tensors)
    assert all(".v4.b32" in each for each in found)


@pytest.mark.parametrize("form", [gelu.TRITON, softmax.TRITON], ids=["gelu", "softmax"])
def test_without_triton_the_plain_form_is_used_and_the_reason_names_it(form, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, form.name, raising=False)
    fresh = TritonForm(form.name, form.run)
    assert "triton" in (fresh.why_plain(torch.device("cpu")) or "")
    assert fresh.taking(torch.ones(1)) is None


@pytest.mark.gpu
@every_dtype
@pytest.mark.parametrize("width", [1, 384, 9001])
@pytest.mark.parametrize("name", ["none", "tanh", "softmax"])
def test_on_an_accelerator_both_are_near_the_exact_numbers(dtype, width, name):
    pytest.importorskip("triton", reason=NOT_INSTALLED)
    module = softmax if name == "softmax" else gelu
    ours = (lambda x: softmax.softmax(x)) if name == "softmax" else (lambda x: gelu.gelu(x, name))
    theirs = (lambda x: torch.softmax(x, -1)) if name == "softmax" else (lambda x: functional.gelu(x, approximate=name))
    x = (3 * torch.randn(257, width, device="cuda")).to(dtype)
    weights = torch.randn_like(x)
    assert module.why_plain(x.device) is None
    mine, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    found, wanted = ours(mine), theirs(exact)
    found.backward(weights)
    wanted.backward(weights.double())
    for one, other in ((found.detach(), wanted.detach()), (mine.grad, exact.grad)):
        assert_close(one.double(), other, rtol=0, atol=float(4 * torch.finfo(dtype).eps * other.abs().max()))
