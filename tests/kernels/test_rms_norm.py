"""What RMSNorm does with what may be absent, mixed or huge."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from hasten.kernels import rms_norm as module
from hasten.kernels.rms_norm import rms_norm

NEAR = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-10}
every_format = pytest.mark.parametrize("dtype", NEAR, ids=str)


@pytest.fixture(params=["compiled", "plain"])
def form(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(module, "_takes", lambda *_: False)
    elif why := module.why_plain():
        pytest.skip(why)


def drawn(*shape, dtype):
    return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()


def check_near(x, weight, eps=1e-5):
    upstream = torch.randn(x.shape).to(x.dtype)
    given = [each for each in (x, weight) if each is not None]
    ours = rms_norm(x, weight, eps)
    exact = functional.rms_norm(x.double(), x.shape[-1:], None if weight is None else weight.double(), eps)
    assert ours.dtype == x.dtype
    near = NEAR[x.dtype]
    assert_close(ours.double(), exact, rtol=near, atol=near)
    found, wanted = torch.autograd.grad(ours, given, upstream), torch.autograd.grad(exact, given, upstream.double())
    for leaf, one, other in zip(given, found, wanted, strict=True):
        assert one.dtype == leaf.dtype
        near = max(NEAR[x.dtype], NEAR[leaf.dtype])
        assert_close(one.double(), other.double(), rtol=near, atol=8 * near)


@every_format
@pytest.mark.parametrize("weighted", [True, False])
def test_the_weight_may_be_absent(form, dtype, weighted):
    torch.manual_seed(0)
    check_near(drawn(3, 50, 40, dtype=dtype), drawn(40, dtype=dtype) if weighted else None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_weight_may_be_in_float32_alone(form, dtype):
    torch.manual_seed(0)
    check_near(drawn(70, 40, dtype=dtype), drawn(40, dtype=torch.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_weight_in_another_format_goes(form, dtype):
    torch.manual_seed(0)
    check_near(drawn(70, 40, dtype=torch.float32), drawn(40, dtype=dtype))


@every_format
def test_eps_is_torchs_own_where_none_is_given(form, dtype):
    x = torch.tensor([[3e-4, -1e-4, 2e-4, 0.0]], dtype=dtype)
    assert_close(rms_norm(x), functional.rms_norm(x, (4,)))


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (8,), (3, 0), (5, 1)], ids=str)
def test_no_rows_one_row_no_columns_and_one(form, shape):
    torch.manual_seed(0)
    check_near(drawn(*shape, dtype=torch.float32), drawn(shape[-1], dtype=torch.float32), eps=0.5)


@pytest.mark.parametrize("scale", [1e19, 1e30, 1e38])
def test_rows_whose_squares_are_no_floats_are_exact(scale):
    if why := module.why_plain():
        pytest.skip(why)
    torch.manual_seed(0)
    x = (scale * torch.randn(9, 70).clamp(-3, 3)).requires_grad_()
    exact = x.detach().double().requires_grad_()
    weight, upstream = torch.randn(70), torch.randn(9, 70)
    ours, wanted = rms_norm(x, weight), functional.rms_norm(exact, (70,), weight.double())
    assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-5)
    (found,), (right,) = torch.autograd.grad(ours, x, upstream), torch.autograd.grad(wanted, exact, upstream.double())
    assert_close(found.double() * scale, right * scale, rtol=1e-4, atol=1e-4)


def test_nan_stays_in_its_row(form):
    x = torch.randn(3, 40)
    x[1, 3] = torch.nan
    assert rms_norm(x).isnan().all(dim=1).tolist() == [False, True, False]


def test_elsewhere_it_is_torchs_own():
    y = rms_norm(torch.empty(4, 8, device="meta", dtype=torch.bfloat16), torch.empty(8, device="meta").bfloat16())
    assert (y.shape, y.dtype, y.device.type) == ((4, 8), torch.bfloat16, "meta")


def test_a_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"weight is of shape \(7,\), and that of x ends in \(8,\)"):
        rms_norm(torch.randn(4, 8), torch.ones(7))
