"""LayerNorm and RMSNorm in Triton give the exact numbers. Without an accelerator Triton's interpreter runs its
kernels."""

from __future__ import annotations

import importlib
from operator import attrgetter

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from hasten.kernels import add_layer_norm as layers
from hasten.kernels import by_rows
from hasten.kernels import rms_norm as squares
from hasten.kernels.accelerated import InTriton
from support.kernels import triton_forms
from support.kernels.triton_forms import FORMATS, NOT_INSTALLED, without_triton

EPS = 0.5  # large enough to be seen
LAYERS, SQUARES = layers.__name__, squares.__name__
every_module = pytest.mark.parametrize("module", [layers, squares], ids=attrgetter("__name__"))
every_format = pytest.mark.parametrize("dtype", FORMATS, ids=str)


def cases(dtype):
    """x, residual, weight and bias, by name."""

    def drawn(*shape):
        return torch.randn(shape).to(dtype)

    wide = drawn(9, 61)
    huge = (1e17 if dtype != torch.float16 else 1e4) * torch.randn(5, 61).clamp(-3, 3)
    nan = drawn(4, 40)
    nan[1, 3] = torch.nan
    return {
        "rows": (drawn(3, 3, 61), drawn(3, 3, 61), drawn(61), drawn(61)),
        "more rows than programs": (drawn(by_rows._PARTS + 44, 5), drawn(by_rows._PARTS + 44, 5), drawn(5), drawn(5)),
        "one row": (wide[0], drawn(61), drawn(61), drawn(61)),
        "no rows": (wide[:0], wide[:0], drawn(61), drawn(61)),
        "transposed": (wide.t(), wide.t(), drawn(9), drawn(9)),
        "apart": (wide[:, ::2], drawn(9, 31), drawn(31), drawn(31)),
        "two columns": (drawn(5, 2), drawn(5, 2), drawn(2), drawn(2)),
        "a power of two": (drawn(5, 256), drawn(5, 256), drawn(256), drawn(256)),
        "wide": (drawn(2, 5000), drawn(2, 5000), drawn(5000), drawn(5000)),
        "bare": (wide, drawn(9, 61), None, None),
        "weight alone": (wide, drawn(9, 61), drawn(61), None),
        "bias alone": (wide, drawn(9, 61), None, drawn(61)),
        "parameters in float32": (wide, drawn(9, 61), torch.randn(61), torch.randn(61)),
        "mixed": (wide, torch.randn(9, 61).bfloat16(), None, None),
        "huge": (huge.to(dtype), drawn(5, 61), drawn(61), drawn(61)),
        "far from nothing": (10 + wide, drawn(9, 61), drawn(61), drawn(61)),
        "nan": (nan, drawn(4, 40), drawn(40), drawn(40)),
    }


every_case = pytest.mark.parametrize("name", cases(torch.float32))


def statistics(x):
    """Of each row, exactly: its mean, 1/√(variance + eps) and 1/√(mean of squares + eps)."""
    mean = x.double().mean(-1, keepdim=True)
    variance, squares = (each.square().mean(-1, keepdim=True) for each in (x - mean, x.double()))
    return mean, torch.rsqrt(variance + EPS), torch.rsqrt(squares + EPS)


def calls(x, residual, weight, bias):
    """What is called, by name."""
    total = x + residual
    gradient, onto, of_total = (torch.randn(each.shape).to(each.dtype) for each in (x, x, total))
    mean, inverse, of_squares = (each.float() for each in statistics(x))
    of_sum = [each.float() for each in statistics(total)[:2]]
    return {
        "norm": (LAYERS, "_on_cuda", (x, weight, bias, EPS)),
        "sum": (LAYERS, "_add_on_cuda", (x, residual, weight, bias, EPS)),
        "norm backward": (LAYERS, "_backward_on_cuda", (gradient, None, x, mean, inverse, weight, bias)),
        "sum backward": (LAYERS, "_backward_on_cuda", (of_total, of_total, total, *of_sum, weight, bias)),
        "rms": (SQUARES, "_on_cuda", (x, weight, EPS)),
        "rms backward": (SQUARES, "_backward_on_cuda", (onto, x, of_squares, weight)),
    }


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """What is given and what is found, by call, format and case."""
    torch.manual_seed(0)
    given = {}
    for dtype in FORMATS:
        for name, case in cases(dtype).items():
            given |= {f"{call} {dtype} {name}": each for call, each in calls(*case).items()}
    return given, triton_forms.interpreted(given, tmp_path_factory.mktemp("interpreted"))


def assert_near(found, wanted, dtype):
    """Beside float64: the worst of all numbers is within eight units of the largest."""
    assert (found.dtype, found.shape) == (dtype, wanted.shape)
    assert found.is_contiguous()
    usual = wanted[wanted.isfinite()].abs().tolist()
    allowed = 8 * torch.finfo(dtype).eps * (max(usual, default=0.0) or 1.0)
    assert_close(found.double(), wanted, rtol=0, atol=allowed, equal_nan=True)


def exact(function, *given):
    """Its result in float64, and what differentiates that."""
    leaves = [None if each is None else each.detach().double().requires_grad_() for each in given]
    result = function(*leaves)

    def gradients(upstream):
        there = [each for each in leaves if each is not None]
        found = iter(torch.autograd.grad(result, there, upstream.double(), allow_unused=True, materialize_grads=True))
        return [torch.empty(0, dtype=torch.float64) if each is None else next(found) for each in leaves]

    return result.detach(), gradients


def layer_norm(x, weight, bias):
    return functional.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def rms_norm(x, weight):
    return functional.rms_norm(x, x.shape[-1:], weight, EPS)


@every_format
@every_case
def test_layer_norm_is_near_the_exact_numbers(interpreted, name, dtype):
    given, found = (each[f"norm {dtype} {name}"] for each in interpreted)
    x, weight, bias, _ = given[2]
    normed, *rows = found
    assert_near(normed, exact(layer_norm, x, weight, bias)[0], dtype)
    for each, wanted in zip(rows, statistics(x), strict=False):
        assert_near(each, wanted, torch.float32)


@every_format
@every_case
def test_a_sum_and_its_layer_norm_are_near_the_exact_numbers(interpreted, name, dtype):
    given, found = (each[f"sum {dtype} {name}"] for each in interpreted)
    x, residual, weight, bias, _ = given[2]
    total, normed, *rows = found
    # The interpreter cuts digits off for bfloat16 where an accelerator rounds: a unit of each number at most.
    assert_close(total, (x + residual).contiguous(), rtol=torch.finfo(total.dtype).eps, atol=0, equal_nan=True)
    assert_near(normed, exact(layer_norm, total, weight, bias)[0], total.dtype)
    for each, wanted in zip(rows, statistics(total), strict=False):
        assert_near(each, wanted, torch.float32)


@every_format
@every_case
@pytest.mark.parametrize("call", ["norm", "sum"])
def test_the_gradients_of_layer_norm_are_near_the_exact_numbers(interpreted, call, name, dtype):
    given, found = (each[f"{call} backward {dtype} {name}"] for each in interpreted)
    gradient, onto, x, _, _, *parameters = given[2]
    _, gradients = exact(layer_norm, x, *parameters)
    of_x, *of_parameters = gradients(gradient)
    assert_near(found[0], of_x if onto is None else of_x + onto.double(), x.dtype)
    for each, wanted, parameter in zip(found[1:], of_parameters, parameters, strict=True):
        assert_near(each, wanted, (x if parameter is None else parameter).dtype)


@every_format
@every_case
def test_rms_norm_and_its_gradients_are_near_the_exact_numbers(interpreted, name, dtype):
    given, (normed, inverse) = (each[f"rms {dtype} {name}"] for each in interpreted)
    x, weight, _ = given[2]
    wanted, gradients = exact(rms_norm, x, weight)
    assert_near(normed, wanted, dtype)
    assert_near(inverse, statistics(x)[2], torch.float32)
    given, found = (each[f"rms backward {dtype} {name}"] for each in interpreted)
    for each, wanted, leaf in zip(found, gradients(given[2][0]), (x, weight), strict=True):
        assert_near(each, wanted, (x if leaf is None else leaf).dtype)


@every_format
def test_nan_stays_in_its_row(interpreted, dtype):
    for call, position in {
        "norm": 0,
        "sum": 1,
        "rms": 0,
        "norm backward": 0,
        "sum backward": 0,
        "rms backward": 0,
    }.items():
        found = interpreted[1][f"{call} {dtype} nan"][position]
        assert found.isnan().all(dim=1).tolist() == [False, True, False, False]
        assert found.isnan().any(dim=1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("form", ["add_layer_norm_triton", "rms_norm_triton"])
@pytest.mark.parametrize("kernel", ["_forward", "_backward"])
@pytest.mark.parametrize("number", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "absent",
    [(), ("weight", "bias", "room", "room_of_weight", "room_of_bias")],
    ids=["with parameters", "without parameters"],
)
def test_its_kernels_compile_and_move_rows_16_bytes_at_a_time(form, kernel, number, absent, tmp_path):
    """For an accelerator that need not be there. What belongs to a row as a whole is 4 bytes."""
    pytest.importorskip("triton", reason=NOT_INSTALLED)
    module = f"hasten.kernels.{form}"
    others = {"rows": "i64", "width": "i32", "eps": "fp32", "mean": "*fp32", "inverse": "*fp32"}
    others |= dict.fromkeys(("room", "room_of_weight", "room_of_bias"), "*fp32")
    names = [name for name in getattr(importlib.import_module(module), kernel).arg_names if name != "block"]
    kinds = {name: others.get(name, f"*{number}") for name in names if name not in absent}
    constants = {"block": 1024} | {name: None for name in names if name in absent}
    moved = triton_forms.moves(module, kernel, kinds, constants, tmp_path, by_rows.warps_of(1024))
    of_rows = [each for each in moved if ".v4.b32" in each]
    assert len(of_rows) >= sum(name not in others for name in kinds)
    assert sum(each not in of_rows for each in moved) == sum(name in kinds for name in ("mean", "inverse"))


@every_module
def test_without_triton_an_accelerator_has_the_plain_form_and_the_reason_is_said(module, monkeypatch):
    without_triton(module, monkeypatch)
    x, residual, gradient, onto = torch.randn(4, 3, 40)
    weight, bias = torch.randn(2, 40)
    if module is squares:
        normed = assert_same(module._on_cuda, module._plain, x, weight, EPS)
        assert_same(module._backward_on_cuda, module._plain_backward, gradient, x, normed[1], weight)
    else:
        normed = assert_same(module._on_cuda, module._plain, x, weight, bias, EPS)
        assert_same(module._add_on_cuda, module._add_plain, x, residual, weight, bias, EPS)
        given = gradient, onto, x, *normed[1:], weight, bias
        assert_same(module._backward_on_cuda, module._plain_backward, *given)


def assert_same(one, other, *given):
    found = one(*given)
    assert all(map(torch.equal, found, other(*given)))
    return found


def test_without_triton_rms_norm_is_torchs_own_where_that_is_one_pass(monkeypatch):
    without_triton(squares, monkeypatch)
    monkeypatch.setattr(squares, "_torch_takes", lambda *_: True)  # as on an accelerator
    x, weight = torch.randn(3, 40), torch.randn(40)
    normed, inverse = squares._on_cuda(x, weight, EPS)
    assert torch.equal(normed, functional.rms_norm(x, (40,), weight, EPS))
    assert_close(inverse, statistics(x)[2].float())


def test_layer_norm_of_a_row_of_one_number_has_the_plain_form(monkeypatch):
    monkeypatch.setattr(layers, "taking_rows", lambda *_: by_rows)
    assert layers._in_triton(torch.empty(5, 1), parameters=()) is None
    assert layers._in_triton(torch.empty(5, 2), parameters=()) is by_rows


def test_rows_wider_than_a_block_and_unknown_parameters_have_the_plain_form(monkeypatch):
    form = InTriton("", lambda *_: None)
    monkeypatch.setattr(form, "taking", lambda *_: by_rows)
    taken = {width: by_rows.taking_rows(form, [torch.empty(1, width)], [None]) for width in (0, 1, 65536, 65537)}
    assert taken == {0: None, 1: by_rows, 65536: by_rows, 65537: None}
    x, narrow = torch.empty(3, 4), torch.empty(4, dtype=torch.bfloat16)
    assert by_rows.taking_rows(form, [x.bfloat16()], [narrow, narrow.float()]) is by_rows
    assert by_rows.taking_rows(form, [x], [narrow]) is None


@pytest.mark.gpu
@every_format
@pytest.mark.parametrize("width", [2, 61, 384, 5000, 65536])
def test_on_an_accelerator_they_are_near_the_exact_numbers_and_twice_the_same(dtype, width):
    pytest.importorskip("triton", reason=NOT_INSTALLED)
    x, residual, upstream = torch.randn(3, 300, width, device="cuda").to(dtype)
    weight, bias = torch.randn(2, width, device="cuda")
    assert layers.why_plain_on(x.device) is None
    assert squares.why_plain_on(x.device) is None
    check_on_accelerator(lambda *given: layers.layer_norm(*given, EPS), layer_norm, upstream, x, weight, bias)
    check_on_accelerator(lambda *given: squares.rms_norm(*given, EPS), rms_norm, upstream, x, weight)
    total, normed = layers.add_layer_norm(x, residual, weight, bias, EPS)
    assert torch.equal(total, x + residual)
    wanted, _ = exact(layer_norm, total, weight, bias)  # another kernel than that of total alone, so not to the bit
    assert_near(normed, wanted, dtype)


def check_on_accelerator(ours, theirs, upstream, *given):
    wanted, gradients = exact(theirs, *given)
    twice = []
    for _ in range(2):
        leaves = [each.clone().requires_grad_() for each in given]
        found = ours(*leaves)
        assert_near(found.detach(), wanted, given[0].dtype)
        twice.append(torch.autograd.grad(found, leaves, upstream))
    for one, again, right, leaf in zip(*twice, gradients(upstream), given, strict=True):
        assert torch.equal(one, again)
        assert_near(one, right, leaf.dtype)


@pytest.mark.gpu
@every_format
def test_on_an_accelerator_without_triton_rms_norm_is_torchs_own(dtype, monkeypatch):
    without_triton(squares, monkeypatch)
    x, upstream = torch.randn(2, 300, 384, device="cuda").to(dtype)
    weight = torch.randn(384, device="cuda").to(dtype)
    check_on_accelerator(lambda *given: squares.rms_norm(*given, EPS), rms_norm, upstream, x, weight)
