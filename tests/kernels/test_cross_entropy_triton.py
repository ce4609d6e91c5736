"""Cross-entropy in Triton gives what torch's gives. Without an accelerator Triton's interpreter runs its kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nan
from torch.nn import functional
from torch.testing import assert_close

from hasten.kernels import cross_entropy as module
from hasten.kernels.cross_entropy import cross_entropy
from support.kernels import triton_forms
from support.kernels.triton_forms import FORMATS, IN_TRITON, NOT_INSTALLED, without_triton

INF = torch.inf
IGNORED = -100


def cases(dtype):
    """Scores, targets and the one that is ignored, of these names; a block of columns is 4096 at most."""
    scores, wide, masked = 3 * torch.randn(5, 61), 3 * torch.randn(3, 9001), torch.randn(4, 9001)
    masked[0, :8500], masked[1, :-1], masked[2, 1:], masked[3, ::2] = -INF, -INF, -INF, -INF  # more than a block
    edges = [[-INF] * 3, [INF, 0, 1], [1, INF, INF], [0, -INF, 1], [0, nan, -INF], [nan] * 3, [-INF, nan, -INF]]
    far = torch.tensor([[1e4, 1e4 - 64, -1e4], [88, -88, 0], [-1e4, -1e4 - 1, -1e4]])
    few = torch.tensor([3, 0, 60, 17, 1])
    made = {
        "rows": (scores, few),
        "one row": (scores[:1], few[:1]),
        "one class": (scores[:, :1], 0 * few),
        "no rows": (scores[:0], few[:0]),
        "a full block": (torch.randn(2, 4096), torch.tensor([4095, 0])),
        "wide": (wide, torch.tensor([9000, 0, 4096])),
        "wide, in order": (wide.sort()[0], torch.tensor([9000, 0, 4096])),  # every block has a greater one
        "transposed": (scores.t()[:5], few.clamp(max=4)),
        "apart": (scores[:, ::2], torch.stack([few // 2, few], 1)[:, 0]),
        "masked": (masked, torch.tensor([8500, 9000, 0, 4095])),
        "far apart": (far, torch.tensor([1, 0, 2])),
        "nearly sure": (torch.tensor([[10.0, -5, -6], [-9, 9, -2]]), torch.arange(2)),
        "edges": (torch.tensor(edges).repeat_interleave(3, 0), torch.arange(3).repeat(len(edges))),
        "ignored": (scores.clone(), torch.tensor([IGNORED, 3, IGNORED, 60, 2])),
        "all ignored": (scores, torch.full((5,), IGNORED)),
    }
    made["ignored"][0][0] = nan
    return {name: (each.to(dtype), target) for name, (each, target) in made.items()}


def exact(scores, target, gradient):
    """Losses and the gradient of the scores, from torch in float64."""
    scores = scores.double().requires_grad_()
    losses = functional.cross_entropy(scores, target, reduction="none", ignore_index=IGNORED)
    losses.backward(gradient)
    return losses.detach(), scores.grad.masked_fill((target == IGNORED)[:, None], 0)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """What is given and what is found, by format and name. Backward takes the lse of the plain form."""
    torch.manual_seed(0)
    given, calls = {}, {}
    for dtype in FORMATS:
        for name, (scores, target) in cases(dtype).items():
            case, gradient = f"{dtype} {name}", torch.randn(len(scores)).double()
            given[case] = scores, target, gradient
            _, lse = module._plain(scores.double(), target, IGNORED)
            calls[f"forward {case}"] = module.__name__, "_on_cuda", (scores, target, IGNORED)
            given_back = gradient, scores, target, lse, IGNORED
            calls[f"backward {case}"] = module.__name__, "_backward_on_cuda", given_back
    scores, target = torch.zeros(6, 9), torch.tensor([0, 9, 8, -1, 2**40, -(2**40)])
    calls["outside"] = module.__name__, "_on_cuda", (scores, target, IGNORED)
    ones, lse = torch.ones(2, 6).double()
    calls["outside, backward"] = module.__name__, "_backward_on_cuda", (ones, scores, target, lse, IGNORED)
    other = torch.randn(3, 7), torch.tensor([3, 2, 3]), 3  # the one that is ignored is a class
    calls["a class"] = module.__name__, "_on_cuda", other
    lse = torch.zeros(1).double().expand(3)
    calls["a class, backward"] = module.__name__, "_backward_on_cuda", (lse, *other[:2], lse, 3)
    return given, triton_forms.interpreted(calls, tmp_path_factory.mktemp("interpreted"))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", cases(torch.float32))
def test_its_kernels_are_near_the_exact_numbers(interpreted, name, dtype):
    """Beside float64, whose losses are written as they are, and gradients in the scores' format."""
    given, found = interpreted
    scores, target, gradient = given[f"{dtype} {name}"]
    (losses, lse), back = found[f"forward {dtype} {name}"], found[f"backward {dtype} {name}"]
    wanted, of_scores = exact(scores, target, gradient)
    _, wanted_lse = module._plain(scores.double(), target, IGNORED)
    for one, other in ((losses, wanted), (lse, wanted_lse)):
        assert (one.dtype, one.shape) == (torch.float64, target.shape)
        assert_close(one, other, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert (back.dtype, back.shape, back.is_contiguous()) == (dtype, scores.shape, True)
    assert_close(back.double(), of_scores, rtol=max(torch.finfo(dtype).eps, 2e-6), atol=5e-7, equal_nan=True)


def test_where_the_target_is_nearly_sure_its_gradient_does_not_cancel(interpreted):
    given, found = interpreted
    scores, target, gradient = given["torch.float32 nearly sure"]
    back, (_, wanted) = found["backward torch.float32 nearly sure"], exact(scores, target, gradient)
    assert_close(back.double().gather(1, target[:, None]), wanted.gather(1, target[:, None]), rtol=1e-6, atol=0)


def test_a_row_that_is_ignored_gives_0_whatever_its_scores(interpreted):
    _, found = interpreted
    for dtype in FORMATS:
        (losses, lse), back = found[f"forward {dtype} ignored"], found[f"backward {dtype} ignored"]
        assert not torch.cat([losses[[0, 2]], lse[[0, 2]], back[[0, 2]].flatten().double()]).any()
    losses, _ = found["a class"]
    assert losses[[0, 2]].tolist() == [0, 0]
    assert losses[1] > 0
    assert not found["a class, backward"].any()


def test_of_a_target_that_is_no_class_nothing_is_read_and_its_row_is_nan(interpreted):
    _, found = interpreted
    (losses, _), back = found["outside"], found["outside, backward"]
    wrong = torch.tensor([False, True, False, True, True, True])
    assert torch.equal(losses.isnan(), wrong)
    assert torch.equal(back.isnan(), wrong[:, None].expand(6, 9))


FORWARD = {"target": "*i64", "losses": "*fp64", "lse": "*fp64", "ignore_index": "i64"}
BACKWARD = {"gradient": "*fp64", "target": "*i64", "lse": "*fp64", "ignore_index": "i64"}


@pytest.mark.parametrize("number", IN_TRITON)
@pytest.mark.parametrize(("block", "warps"), [(256, 1), (4096, 16)])
@pytest.mark.parametrize(
    ("kernel", "of_rows", "rows"), [("_forward", FORWARD, ["scores"]), ("_backward", BACKWARD, ["scores", "to"])]
)
def test_its_kernels_compile_and_read_16_bytes_of_scores_at_a_time(
    kernel, of_rows, rows, number, block, warps, tmp_path
):
    kinds = of_rows | dict.fromkeys(rows, f"*{number}") | {"width": "i32"}
    moved = triton_forms.moves("hasten.kernels.cross_entropy_triton", kernel, kinds, {"block": block}, tmp_path, warps)
    once = len(of_rows)  # three numbers of a row, and the score of the target
    assert sum(".v4.b32" not in each for each in moved) == once
    assert len(moved) - once >= len(rows)


def test_without_triton_an_accelerator_has_the_plain_form_and_the_reason_is_said(monkeypatch):
    without_triton(module, monkeypatch)
    scores, target, gradient = torch.randn(3, 40), torch.arange(3), torch.randn(3).double()
    found = module._on_cuda(scores, target, IGNORED)
    assert_close(found, module._plain(scores, target, IGNORED), rtol=0, atol=0)
    given = gradient, scores, target, found[1], IGNORED
    assert torch.equal(module._backward_on_cuda(*given), module._plain_backward(*given))


def test_what_the_operator_does_not_know_is_refused_on_an_accelerator_as_well():
    with pytest.raises(ValueError, match="target is int64"):
        module._on_cuda(torch.zeros(3, 2), torch.zeros(2).long(), IGNORED)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("classes", [1, 61, 4096, 9001])
def test_on_an_accelerator_it_is_near_the_exact_numbers(dtype, classes):
    pytest.importorskip("triton", reason=NOT_INSTALLED)
    scores = (3 * torch.randn(257, classes, device="cuda")).to(dtype)
    target = torch.randint(classes, (257,), device="cuda")
    target[::5] = IGNORED
    assert module.why_plain_on(scores.device) is None
    mine = scores.clone().requires_grad_()
    found = cross_entropy(mine, target, reduction="none")
    found.sum().backward()
    losses, gradient = exact(scores, target, torch.ones(257, device="cuda").double())
    for one, other in ((found, losses), (mine.grad, gradient)):
        allowed = float(4 * torch.finfo(dtype).eps * max(1.0, other.abs().max()))
        assert_close(one.double(), other, rtol=0, atol=allowed)
