"""GELU in Triton gives what torch's gives. Without an accelerator Triton's interpreter runs its kernels."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from hasten.kernels import gelu as module
from hasten.kernels.gelu import gelu
from support.kernels import triton_forms
from support.kernels.triton_forms import FORMATS, IN_TRITON, NOT_INSTALLED, without_triton

every_form = pytest.mark.parametrize("approximate", ["none", "tanh"])


def tensors(dtype):
    """Of these names; the first is wider than a program of the grid takes."""
    x = (3 * torch.randn(37, 61)).to(dtype)
    huge = torch.tensor([1e4, -1e4, 88.0, -88.0, 0.0, torch.inf]).to(dtype)
    nan = torch.tensor([1.0, torch.nan, -1.0]).to(dtype)
    return {
        "many": x,
        "one": x[:1, :1],
        "none": x[:0],
        "transposed": x.t(),
        "apart": x[:, ::2],
        "huge": huge,
        "nan": nan,
    }


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """What is given and what is found, by form, format and name."""
    torch.manual_seed(0)
    given, calls = {}, {}
    for approximate in ("none", "tanh"):
        for dtype in FORMATS:
            for name, x in tensors(dtype).items():
                case, gradient = f"{approximate} {dtype} {name}", torch.randn(x.shape).to(dtype)
                given[case] = x, gradient
                calls[f"forward {case}"] = module.__name__, "_on_cuda", (x, approximate)
                calls[f"backward {case}"] = module.__name__, "_backward_on_cuda", (gradient, x, approximate)
    found = triton_forms.interpreted(calls, tmp_path_factory.mktemp("interpreted"))
    return given, {case: (found[f"forward {case}"], found[f"backward {case}"]) for case in given}


@every_form
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", tensors(torch.float32))
def test_its_kernels_are_near_the_exact_numbers(interpreted, name, dtype, approximate):
    """Beside float64: the worst of all numbers is within two units of the largest, or of 1."""
    given, found = (each[f"{approximate} {dtype} {name}"] for each in interpreted)
    x, gradient = given
    exact = x.double().requires_grad_()
    wanted = functional.gelu(exact, approximate=approximate)
    wanted.backward(gradient.double())
    for mine, other in zip(found, (wanted.detach(), exact.grad), strict=True):
        assert (mine.dtype, mine.shape, mine.stride()) == (dtype, x.shape, torch.empty_like(x).stride())
        usual = other.isfinite()  # of ∞ torch gives a derivative of NaN
        allowed = 2 * torch.finfo(dtype).eps * max([1.0, *other[usual].abs().tolist()])
        assert_close(mine.double()[usual], other[usual], rtol=0, atol=allowed)
        assert not mine[usual].isnan().any()
        assert mine[x.isnan()].isnan().all()


@every_form
@pytest.mark.parametrize("number", IN_TRITON)
@pytest.mark.parametrize(("kernel", "tensors"), [("_forward", ["x", "y"]), ("_backward", ["gradient", "x", "to"])])
def test_its_kernels_compile_and_read_16_bytes_at_a_time(kernel, tensors, number, approximate, tmp_path):
    kinds = dict.fromkeys(tensors, f"*{number}") | {"count": "i32"}
    constants = {"by_tanh": approximate == "tanh", "block": 1024}
    moved = triton_forms.moves("hasten.kernels.gelu_triton", kernel, kinds, constants, tmp_path)
    assert len(moved) >= len(tensors)
    assert all(".v4.b32" in each for each in moved)


def test_without_triton_an_accelerator_has_the_plain_form_and_the_reason_is_said(monkeypatch):
    without_triton(module, monkeypatch)
    x, gradient = torch.randn(2, 3, 40)
    assert torch.equal(module._on_cuda(x, "tanh"), functional.gelu(x, approximate="tanh"))
    wanted = torch.ops.aten.gelu_backward(gradient, x, approximate="none")
    assert torch.equal(module._backward_on_cuda(gradient, x, "none"), wanted)


@pytest.mark.gpu
@every_form
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_on_an_accelerator_it_is_near_the_exact_numbers(dtype, approximate):
    pytest.importorskip("triton", reason=NOT_INSTALLED)
    x = (3 * torch.randn(257, 384, device="cuda")).to(dtype)
    assert module.why_plain_on(x.device) is None
    mine, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    found, wanted = gelu(mine, approximate), functional.gelu(exact, approximate=approximate)
    found.sum().backward()
    wanted.sum().backward()
    for one, other in ((found.detach(), wanted.detach()), (mine.grad, exact.grad)):
        assert_close(one.double(), other, rtol=0, atol=float(2 * torch.finfo(dtype).eps * other.abs().max()))
