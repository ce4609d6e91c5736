"""Softmax in Triton gives what torch's gives. Without an accelerator Triton's interpreter runs its kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nan
from torch.testing import assert_close

from hasten.kernels import softmax as module
from hasten.kernels.softmax import softmax
from support.kernels import triton_forms
from support.kernels.triton_forms import FORMATS, IN_TRITON, NOT_INSTALLED, without_triton

INF = torch.inf


def tensors(dtype):
    """Of these names; a block of columns is 4096 at most."""
    x = 3 * torch.randn(5, 61)
    wide = 3 * torch.randn(3, 9001)
    masked = torch.randn(4, 9001)
    masked[0, :8500], masked[1, 1:], masked[2, ::2], masked[3] = -INF, -INF, -INF, -INF  # more than a block
    far = [[1e4, 1e4 - 64, -1e4], [-3e38, 3e38, 0], [88, -88, 0]]
    infinite = [[INF, 0, 1], [1, INF, INF], [0, nan, -INF], [nan] * 3, [-INF, nan, -INF], [0, 1, 2]]
    made = {
        "rows": x,
        "one row": x[0],
        "one number": x[:1, :1],
        "no rows": x[:0],
        "no columns": x[:, :0],
        "a full block": torch.randn(2, 4096),
        "wide": wide,
        "wide, in order": wide.sort()[0],  # every block has a greater one than all before
        "transposed": x.t(),
        "apart": x[:, ::2],
        "three dimensions": torch.randn(2, 3, 17),
        "masked": masked,
        "far apart": torch.tensor(far),
        "infinite and NaN": torch.tensor(infinite),
    }
    return {name: each.to(dtype) for name, each in made.items()}


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """What is given and what is found, by format and name. Backward takes torch's own shares."""
    torch.manual_seed(0)
    given, calls = {}, {}
    for dtype in FORMATS:
        for name, x in tensors(dtype).items():
            case, gradient, y = f"{dtype} {name}", torch.randn(x.shape).to(dtype), torch.softmax(x, -1)
            given[case] = x, gradient, y
            calls[f"forward {case}"] = module.__name__, "_on_cuda", (x,)
            calls[f"backward {case}"] = module.__name__, "_backward_on_cuda", (gradient, y)
    found = triton_forms.interpreted(calls, tmp_path_factory.mktemp("interpreted"))
    return given, {case: (found[f"forward {case}"], found[f"backward {case}"]) for case in given}


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", tensors(torch.float32))
def test_its_kernels_are_near_the_exact_numbers(interpreted, name, dtype):
    """Beside float64: each number is within a unit of it and a little of the largest of its row."""
    (x, gradient, y), found = (each[f"{dtype} {name}"] for each in interpreted)
    mean = (gradient.double() * y.double()).sum(-1, keepdim=True)
    wanted = torch.softmax(x.double(), -1), y.double() * (gradient.double() - mean)
    for mine, other in zip(found, wanted, strict=True):
        assert (mine.dtype, mine.shape) == (dtype, x.shape)
        assert mine.is_contiguous()
        assert_close(mine.double(), other, rtol=max(torch.finfo(dtype).eps, 2e-6), atol=5e-7, equal_nan=True)


def test_of_what_is_masked_the_share_is_0(interpreted):
    given, found = interpreted
    for dtype in FORMATS:
        x, shares = given[f"{dtype} masked"][0], found[f"{dtype} masked"][0]
        assert not shares[:3][x[:3].isneginf()].any()
        assert shares[1, 0] == 1


@pytest.mark.parametrize("number", IN_TRITON)
@pytest.mark.parametrize(("block", "warps"), [(256, 1), (4096, 16)])
@pytest.mark.parametrize(("kernel", "tensors"), [("_forward", ["x", "y"]), ("_backward", ["gradient", "y", "to"])])
def test_its_kernels_compile_and_read_16_bytes_at_a_time(kernel, tensors, number, block, warps, tmp_path):
    kinds = dict.fromkeys(tensors, f"*{number}") | {"width": "i32"}
    moved = triton_forms.moves("hasten.kernels.softmax_triton", kernel, kinds, {"block": block}, tmp_path, warps)
    assert len(moved) >= len(tensors) + 1  # all but what is written is read twice, or is still at hand
    assert all(".v4.b32" in each for each in moved)


def test_without_triton_an_accelerator_has_the_plain_form_and_the_reason_is_said(monkeypatch):
    without_triton(module, monkeypatch)
    x, gradient = torch.randn(2, 3, 40)
    y = module._on_cuda(x)
    assert torch.equal(y, torch.softmax(x, -1))
    assert torch.equal(module._backward_on_cuda(gradient, y), module._plain_backward(gradient, y))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("width", [1, 61, 4096, 9001])
def test_on_an_accelerator_it_is_near_the_exact_numbers(dtype, width):
    pytest.importorskip("triton", reason=NOT_INSTALLED)
    x = (3 * torch.randn(257, width, device="cuda")).to(dtype)
    weights = torch.randn_like(x)
    assert module.why_plain_on(x.device) is None
    mine, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    found, wanted = softmax(mine), torch.softmax(exact, -1)
    found.backward(weights)
    wanted.backward(weights.double())
    for one, other in ((found.detach(), wanted.detach()), (mine.grad, exact.grad)):
        assert_close(one.double(), other, rtol=0, atol=float(4 * torch.finfo(dtype).eps * other.abs().max()))
