"""Every fused operator gives what torch's own gives, and its gradients: nearly always nearer to the exact number, and
never more than twice as far."""

from __future__ import annotations

from functools import partial
from operator import attrgetter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck
from torch.testing import assert_close

from hasten.kernels.attention import scaled_dot_product_attention as attention
from shape.source import imports, sources
from support.kernels.operator_cases import ALL, ONE_OF_EACH

FORMATS = [torch.float32, torch.bfloat16, torch.float16]
every_case = pytest.mark.parametrize("case", ALL, ids=attrgetter("name"))
every_operator = pytest.mark.parametrize("case", ONE_OF_EACH, ids=attrgetter("name"))


def all_of(function, given, upstream):
    """What the function gives, and the gradients of those that it is given."""
    leaves = [each.clone().requires_grad_(each.is_floating_point()) for each in given]
    found = function(*leaves)
    wanted = [each for each in leaves if each.requires_grad]
    gradients = torch.autograd.grad(found, wanted, upstream.to(found.dtype).expand_as(found), allow_unused=True)
    return [found.detach(), *gradients]


def check_near(case, given, upstream, times=2.0, floor=0.0, roundings=1):
    """As near to the exact numbers as torch's own, or as so many roundings of them, or of the floor."""
    exact = all_of(case.theirs, [each.double() if each.is_floating_point() else each for each in given], upstream)
    ours, theirs = all_of(case.ours, given, upstream), all_of(case.theirs, given, upstream)
    for number, (mine, other, wanted) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        if wanted.isnan().all():  # also of none
            assert mine.isnan().all()
            continue
        rounded = (
            max(roundings, case.roundings) * torch.finfo(mine.dtype).eps / 2 * max(wanted.abs().max().item(), floor)
        )
        for measure in (torch.max, torch.mean):
            found, allowed = (measure((each.double() - wanted).abs()) for each in (mine, other))
            assert found <= times * allowed + rounded, f"output {number}, {measure.__name__}"


@every_case
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_it_is_as_exact_as_torchs_own(case, dtype):
    torch.manual_seed(0)
    given = [each.to(dtype) if each.is_floating_point() else each for each in case.made(257, 384)]
    check_near(case, given, torch.randn(()).to(dtype).double())


@every_case
@settings(max_examples=25)
@given(rows=st.integers(0, 9), width=st.integers(1, 140), dtype=st.sampled_from(FORMATS), seed=st.integers(0, 99))
def test_any_shape_is_computed(case, rows, width, dtype, seed):
    torch.manual_seed(seed)
    given = [each.to(dtype) if each.is_floating_point() else each for each in case.made(rows, width)]
    # The errors of a few numbers are not like others: torch's may be none at all.
    check_near(case, given, torch.randn(()).to(dtype).double(), floor=1.0, roundings=8)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("order", ["transposed", "every second", "expanded"])
def test_any_strides_are_computed(case, dtype, order):
    torch.manual_seed(0)
    given = list(case.made(12, 38))
    first = given[0].to(dtype)
    given = [each.to(dtype) if each.is_floating_point() else each for each in given]
    given[0] = {
        "transposed": lambda: first.t().contiguous().t(),
        "every second": lambda: first.repeat_interleave(2, dim=-1)[..., ::2],
        "expanded": lambda: first[:1].expand_as(first),
    }[order]()
    wanted = case.ours(*(each.contiguous() for each in given))
    rounding = torch.finfo(dtype).eps * wanted.abs().max().item()
    differing = 0.0 if case.roundings == 1 else case.roundings * rounding  # torch's own products differ by strides
    assert_close(case.ours(*given), wanted, rtol=0.0, atol=differing)
    check_near(case, given, torch.ones((), dtype=torch.float64), roundings=8)


@pytest.mark.parametrize("case", [case for case in ALL if case.nan_stays], ids=attrgetter("name"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_huge_numbers_are_exact_or_as_in_torch_and_nan_stays(case, dtype):
    torch.manual_seed(0)
    given = [each.to(dtype) if each.is_floating_point() else each for each in case.made(3, 40)]
    given[0][0, :4] = torch.tensor([case.huge, -case.huge, 88.0, -88.0]).to(dtype)
    given[0][1, 5] = torch.nan
    ours, theirs = case.ours(*given), case.theirs(*given)
    exact = case.theirs(*(each.double() if each.is_floating_point() else each for each in given)).to(dtype)
    behind = slice(1, None) if ours.dim() else ...
    assert torch.equal(ours[behind].isnan(), theirs[behind].isnan())
    near = partial(torch.isclose, ours, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5, equal_nan=True)
    assert (near(theirs) | near(exact)).all()


@pytest.mark.parametrize("case", [case for case in ALL if case.roundings == 1], ids=attrgetter("name"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_result_depends_on_neither_repetition_nor_threads(case, dtype):
    """But for those that torch's own products are part of."""
    torch.manual_seed(0)
    given = [each.to(dtype) if each.is_floating_point() else each for each in case.made(501, 200)]
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 2, 3):
            torch.set_num_threads(number)
            found.append(all_of(case.ours, given, torch.ones(())))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@every_case
def test_its_gradients_pass_gradcheck(case):
    torch.manual_seed(0)
    given = [each.requires_grad_(each.is_floating_point()) for each in case.made(3, 5)]
    assert torch.autograd.gradcheck(case.ours, given)


@every_operator
def test_a_second_derivative_is_refused_and_not_zero(case):
    torch.manual_seed(0)
    given = [each.bfloat16().requires_grad_() if each.is_floating_point() else each for each in case.made(6, 20)]
    found = case.ours(*given).float().square().sum()
    with pytest.raises(RuntimeError, match=r"double backward|not implemented"):  # of what torch computes
        gradients = torch.autograd.grad(found, [each for each in given if each.requires_grad], create_graph=True)
        sum(each.float().square().sum() for each in gradients).backward()


@every_operator
def test_it_passes_torchs_opcheck(case):
    if case.checked_as is torch.bfloat16 and (why := attention.why_plain(torch.device("cpu"))) is not None:
        pytest.skip(why)
    torch.manual_seed(0)
    given = [each.to(case.checked_as) if each.is_floating_point() else each for each in case.made(6, 20)]
    for first in (given[0], given[0].t().contiguous().t()):
        taken = [case.as_given(each.detach()) for each in (first, *given[1:])]
        leaves = [each.requires_grad_(each.is_floating_point()) for each in taken]
        opcheck(case.overload, (*leaves, *case.options))


@every_operator
def test_torch_compile_traces_it_without_a_graph_break(case):
    torch._dynamo.reset()  # it would count one case's compilations for the next
    torch.manual_seed(0)
    given = [each.float() if each.is_floating_point() else each for each in case.made(6, 20)]
    compiled = torch.compile(case.ours, backend="aot_eager", fullgraph=True)
    for found, wanted in zip(
        all_of(compiled, given, torch.ones(())), all_of(case.ours, given, torch.ones(())), strict=True
    ):
        assert_close(found, wanted, rtol=0, atol=0)


@every_operator
def test_autocast_gives_the_dtype_that_torch_gives(case):
    torch.manual_seed(0)
    given = [each.bfloat16() if each.is_floating_point() else each for each in case.made(6, 20)]
    with torch.autocast("cpu", torch.bfloat16):
        assert case.ours(*given).dtype == case.theirs(*given).dtype


def test_no_module_imports_a_triton_form():
    """Forms are imported when a tensor on an accelerator is first met, as Triton may not be installed."""
    found = [
        name
        for source in sources("src/hasten/kernels", "src/hasten/techniques")
        for _, name in imports(source)
        if "_triton" in name
    ]
    assert found == []
