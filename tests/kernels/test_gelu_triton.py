"""GELU in Triton gives what torch's gives. Without an accelerator Triton's interpreter runs its kernels."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import hasten.kernels
from hasten.kernels import gelu as module
from hasten.kernels.accelerated import InTriton
from hasten.kernels.gelu import gelu

FORMATS = [torch.float32, torch.bfloat16, torch.float16]
PROGRAM = Path(__file__).parent.parent / "interpreted_gelu.py"
NOT_INSTALLED = "Triton is not installed: a download of a gigabyte"
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
    pytest.importorskip("triton", reason=NOT_INSTALLED)
    torch.manual_seed(0)
    given, place = {}, tmp_path_factory.mktemp("interpreted")
    for approximate in ("none", "tanh"):
        for dtype in FORMATS:
            for name, x in tensors(dtype).items():
                given[f"{approximate} {dtype} {name}"] = approximate, x, torch.randn(x.shape).to(dtype)
    torch.save(given, place / "given")
    command = [sys.executable, str(PROGRAM), str(place / "given"), str(place / "found")]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return given, torch.load(place / "found", weights_only=True)


@every_form
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", tensors(torch.float32))
def test_its_kernels_are_near_the_exact_numbers(interpreted, name, dtype, approximate):
    """Beside float64: the worst of all numbers is within two units of the largest, or of 1."""
    given, found = (each[f"{approximate} {dtype} {name}"] for each in interpreted)
    _, x, gradient = given
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
@pytest.mark.parametrize("number", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("kernel", "tensors"), [("_forward", ["x", "y"]), ("_backward", ["gradient", "x", "to"])])
def test_its_kernels_compile_and_read_16_bytes_at_a_time(kernel, tensors, number, approximate, tmp_path, monkeypatch):
    """For an accelerator that need not be there. Triton itself finds out which addresses and counts 16 divides."""
    triton = pytest.importorskip("triton", reason=NOT_INSTALLED)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels = importlib.import_module("hasten.kernels.gelu_triton")
    source = triton.compiler.ASTSource(
        fn=getattr(kernels, kernel),
        signature=dict.fromkeys(tensors, f"*{number}") | {"count": "i32", "by_tanh": "constexpr", "block": "constexpr"},
        constexprs={"by_tanh": approximate == "tanh", "block": kernels._BLOCK},
        attrs={(position,): [["tt.divisibility", 16]] for position in range(len(tensors) + 1)},
    )
    target = triton.backends.compiler.GPUTarget("cuda", 80, 32)
    made = triton.compile(source, target=target, options={"enable_fp_fusion": True})
    assert made.asm["cubin"]
    moved = re.findall(r"(?:ld|st)\.global\S*", made.asm["ptx"])
    assert len(moved) >= len(tensors)
    assert all(".v4.b32" in each for each in moved)


def test_without_triton_an_accelerator_has_the_plain_form_and_the_reason_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "hasten.kernels.gelu_triton", raising=False)
    monkeypatch.delattr(hasten.kernels, "gelu_triton", raising=False)
    monkeypatch.setattr(module, "_TRITON", InTriton(module._TRITON._name, module._TRITON._run))
    assert "triton" in (module._TRITON.why_plain(torch.device("cpu")) or "")
    x, gradient = torch.randn(2, 3, 40)
    assert torch.equal(module._on_cuda(x, "tanh"), functional.gelu(x, approximate="tanh"))
    wanted = torch.ops.aten.gelu_backward(gradient, x, approximate="none")
    assert torch.equal(module._backward_on_cuda(gradient, x, "none"), wanted)


def test_importing_gelu_does_not_import_triton():
    program = "import sys, hasten.kernels.gelu; sys.exit('hasten.kernels.gelu_triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


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
    for one, other in ((found, wanted), (mine.grad, exact.grad)):
        assert_close(one.double(), other, rtol=0, atol=float(2 * torch.finfo(dtype).eps * other.abs().max()))
