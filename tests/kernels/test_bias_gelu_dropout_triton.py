"""Bias, GELU and dropout in Triton drop what the plain form drops, and give what it gives of the rest. Without an
accelerator Triton's interpreter runs its kernels."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from hasten.kernels import bias_gelu_dropout as module
from hasten.kernels.bias_gelu_dropout import bias_gelu_dropout
from support.kernels import triton_forms
from support.kernels.triton_forms import FORMATS, IN_TRITON, NOT_INSTALLED, without_triton

SEEDS = {"a large one": 0x123456789ABCDEF, "a small one": 7, "a negative one": -3}
SHAPES = {"rows": (7, 61), "wide": (2, 1500), "three dimensions": (3, 5, 300), "many rows": (70, 16), "none": (0, 8)}
every_format = pytest.mark.parametrize("dtype", FORMATS, ids=str)


def given():
    """(x, gradient, bias, seed, p, form) by format and name."""
    made = {}
    for dtype in FORMATS:
        for name, shape in SHAPES.items():
            x, gradient = (torch.randn(shape).to(dtype) for _ in range(2))
            for p in (0.0, 0.3, 1.0):
                bias = None if name == "three dimensions" else torch.randn(shape[-1])
                made[f"{dtype} {name} {p}"] = x, gradient, bias, torch.tensor(SEEDS["a large one"]), p, "tanh"
        x, gradient, bias = (torch.randn(5, 130).to(dtype) for _ in range(2)), None, torch.randn(130).to(dtype)
        x, gradient = x
        for name, seed in SEEDS.items():
            made[f"{dtype} {name}"] = x.t().contiguous().t(), gradient, bias, torch.tensor(seed), 0.5, "none"
    return made


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    torch.manual_seed(0)
    cases, calls = given(), {}
    for name, (x, gradient, *others) in cases.items():
        calls[f"forward {name}"] = module.__name__, "_on_cuda", (x, *others)
        calls[f"backward {name}"] = module.__name__, "_backward_on_cuda", (gradient, x, *others)
    found = triton_forms.interpreted(calls, tmp_path_factory.mktemp("interpreted"))
    return cases, {name: (found[f"forward {name}"], *found[f"backward {name}"]) for name in cases}


def exact(x, gradient, bias, *others):
    wide = None if bias is None else bias.double()
    y = module._plain(x.double(), wide, *others)
    return y, *module._plain_backward(gradient.double(), x.double(), wide, *others)


@pytest.mark.parametrize("name", given())
def test_its_kernels_are_near_the_exact_numbers_and_drop_the_same(interpreted, name):
    cases, found = (each[name] for each in interpreted)
    x, _, bias, seed, _, form = cases
    formats = x.dtype, x.dtype, x.dtype if bias is None else bias.dtype
    for mine, other, dtype in zip(found, exact(*cases), formats, strict=True):
        assert (mine.dtype, mine.shape) == (dtype, other.shape)
        allowed = 4 * torch.finfo(x.dtype).eps * max(1.0, float(other.abs().max()) if other.numel() else 1.0)
        assert_close(mine.double(), other, rtol=0, atol=allowed)
    seen = exact(x, x, bias, seed, 0.0, form)[0].abs() > 0.01  # where nothing is dropped
    assert torch.equal(found[0][seen] == 0, exact(*cases)[0][seen] == 0)


@pytest.mark.parametrize("number", IN_TRITON)
@pytest.mark.parametrize("kernel", ["_forward", "_backward"])
@pytest.mark.parametrize("draws", [True, False])
def test_its_kernels_compile(kernel, number, draws, tmp_path):
    """For an accelerator that need not be there."""
    kinds = dict.fromkeys(("x", "bias", "y"), f"*{number}") | {"width": "i32"}
    if kernel == "_backward":
        kinds = dict.fromkeys(("gradient", "x", "bias", "to"), f"*{number}") | {"sums": "*fp32"}
        kinds |= dict.fromkeys(("rows", "width", "parts"), "i32")
    kinds |= {"seed": "i64", "threshold": "i64", "scale": "fp32"}
    constants: dict[str, object] = {"biased": True, "draws": draws, "by_tanh": True, "counters": 256}
    moved = triton_forms.moves(f"{module.__name__}_triton", kernel, kinds, constants, tmp_path)
    assert len(moved) >= sum(kind.startswith("*") for kind in kinds.values())


def test_without_triton_an_accelerator_has_the_plain_form_and_the_reason_is_said(monkeypatch):
    without_triton(module, monkeypatch)
    x, gradient, bias = torch.randn(3, 40), torch.randn(3, 40), torch.randn(40)
    others = bias, torch.tensor(5), 0.25, "none"
    assert torch.equal(module._on_cuda(x, *others), module._plain(x, *others))
    found, wanted = module._backward_on_cuda(gradient, x, *others), module._plain_backward(gradient, x, *others)
    assert all(map(torch.equal, found, wanted))


@pytest.mark.gpu
@every_format
def test_on_an_accelerator_it_is_near_the_exact_numbers_and_drops_what_a_processor_drops(dtype):
    pytest.importorskip("triton", reason=NOT_INSTALLED)
    x = (3 * torch.randn(257, 900)).to(dtype)
    bias, seed = torch.randn(900), torch.tensor(SEEDS["a large one"])
    there, leaf = x.cuda().requires_grad_(), x.clone().requires_grad_()
    assert module.why_plain_on(there.device) is None
    found = bias_gelu_dropout(there, bias.cuda(), 0.3, seed=seed)
    wanted = bias_gelu_dropout(leaf, bias, 0.3, seed=seed)
    found.sum().backward()
    wanted.sum().backward()
    seen = functional.gelu(x.double() + bias).abs() > 1e-3  # far below zero it is nothing by itself, on either side
    assert torch.equal((found.cpu() == 0)[seen], (wanted == 0)[seen])
    assert 0.25 < (wanted == 0)[seen].float().mean() < 0.35
    for one, other in ((found.detach().cpu(), wanted.detach()), (there.grad.cpu(), leaf.grad)):
        assert_close(one.double(), other.double(), rtol=0, atol=float(4 * torch.finfo(dtype).eps * other.abs().max()))
