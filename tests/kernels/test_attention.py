"""Attention in bfloat16 for any heads, lengths and widths, compared with torch's own and with the formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from hasten.kernels.attention import scaled_dot_product_attention as written
from hasten.kernels.attention.scaled_dot_product_attention import attention

needs_the_instruction = pytest.mark.skipif(
    written.CPP.why_plain() is not None, reason=f"attention is torch's own here: {written.CPP.why_plain()}"
)
either = pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])


def heads(batches, number, rows, width, dtype=torch.bfloat16):
    return torch.randn(batches, number, rows, width).to(dtype)


def projected(batches, number, rows, width):
    """Queries, keys and values, as one linear layer makes them: side by side."""
    given = torch.randn(batches, rows, 3 * number * width).bfloat16()
    return given.unflatten(-1, (3, number, width)).permute(2, 0, 3, 1, 4).unbind()


def value_and_gradients(function, given, upstream, **named):
    leaves = [each.detach().requires_grad_() for each in given]
    value = function(*leaves, **named)
    return [value.detach(), *torch.autograd.grad(value, leaves, upstream.to(value.dtype))]


def composed(query, key, value, causal, scale=None):
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    unseen = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(unseen, -torch.inf) if causal else scores).softmax(-1) @ value


def check(given, causal, scale=None):
    """No farther from the exact numbers than twice as far as torch's own, or as eight roundings of the greatest."""
    query, _, value = given
    upstream = torch.randn(*query.shape[:-1], value.shape[-1]).bfloat16()
    theirs, named = functional.scaled_dot_product_attention, {"is_causal": causal, "scale": scale}
    ours = value_and_gradients(attention, given, upstream, causal=causal, scale=scale)
    torchs = value_and_gradients(theirs, given, upstream, **named)
    exact = value_and_gradients(theirs, [each.double() for each in given], upstream, **named)
    for mine, other, wanted in zip(ours, torchs, exact, strict=True):
        assert (mine.shape, mine.dtype, mine.stride()[-1]) == (other.shape, other.dtype, 1)
        found, allowed = ((each.double() - wanted).abs().max() for each in (mine, other))
        assert found <= 2 * allowed + 8 * 2**-9 * (wanted.abs().max().item() or 1.0)


@either
@given(
    batches=st.integers(1, 3),
    number=st.integers(1, 3),
    queries=st.integers(1, 130),
    keys=st.integers(1, 130),
    width=st.integers(1, 70),
    seed=st.integers(0, 99),
)
def test_any_shape_is_computed(causal, batches, number, queries, keys, width, seed):
    torch.manual_seed(seed)
    check([heads(batches, number, rows, width) for rows in (queries, keys, keys)], causal)


@either
@pytest.mark.parametrize("rows", [47, 48, 49, 512, 513, 1100])
def test_lengths_near_the_block_size_are_computed(causal, rows):
    torch.manual_seed(0)
    check(projected(1, 2, rows, 16), causal)


@either
@pytest.mark.parametrize("scale", [1e-3, 3.0])
def test_any_scale_is_computed(causal, scale):
    torch.manual_seed(0)
    check(projected(2, 3, 50, 32), causal, scale)


@needs_the_instruction
@pytest.mark.parametrize("order", ["heads behind rows", "expanded", "every second column"])
def test_strides_change_nothing(order):
    torch.manual_seed(0)
    query, key, value = projected(2, 3, 20, 32)
    if order == "expanded":
        key = key[:, :1].expand_as(key)
    elif order == "every second column":
        key = key.repeat_interleave(2, dim=-1)[..., ::2]
    upstream = torch.randn(1).bfloat16().expand(query.shape)
    found, wanted = (
        value_and_gradients(attention, given, upstream)
        for given in ((query, key, value), [each.contiguous() for each in (query, key, value)])
    )
    assert_close(found, wanted, rtol=0, atol=0)


@needs_the_instruction
def test_the_number_of_threads_changes_nothing():
    torch.manual_seed(0)
    given, threads, found = projected(2, 3, 100, 32), torch.get_num_threads(), []
    upstream = torch.randn(given[0].shape).bfloat16()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append(value_and_gradients(attention, given, upstream))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@either
def test_a_later_key_changes_nothing_for_a_query(causal):
    torch.manual_seed(0)
    query, key, value = projected(1, 1, 70, 16)
    behind_key, behind_value = (torch.cat([each[..., :40, :], each[..., 40:, :] * 9], dim=-2) for each in (key, value))
    found, changed = (
        attention(query, key, value, causal=causal),
        attention(query, behind_key, behind_value, causal=causal),
    )
    assert torch.equal(found[..., :40, :], changed[..., :40, :]) == causal


def test_torch_computes_other_shapes_and_dtypes():
    torch.manual_seed(0)
    theirs = functional.scaled_dot_product_attention
    one_for_all = heads(2, 4, 9, 16), heads(2, 1, 9, 16), heads(2, 1, 9, 16)  # torch broadcasts them
    rows = torch.randn(3, 9, 16), torch.randn(3, 9, 16), torch.randn(3, 9, 8)
    none = heads(1, 2, 0, 16), heads(1, 2, 5, 16), heads(1, 2, 5, 16)
    for some in (one_for_all, rows, none, [heads(1, 2, 9, 16, torch.float16)] * 3):
        assert_close(attention(*some), theirs(*some))


def test_sdpa_kernel_chooses_torchs_implementation():
    torch.manual_seed(0)
    given = projected(1, 2, 20, 16)
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.equal(attention(*given), functional.scaled_dot_product_attention(*given))


def test_autocast_casts_its_inputs_as_torch_does():
    torch.manual_seed(0)
    given = [heads(2, 3, 20, 32, torch.float32) for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = attention(*given), functional.scaled_dot_product_attention(*given)
    assert found.dtype == wanted.dtype == torch.bfloat16
    assert_close(found, wanted, rtol=2**-6, atol=2**-8)


@needs_the_instruction  # torch's own gives infinite gradients on a processor with AVX2 alone
@either
@pytest.mark.parametrize("times", [3e2, 1e5, 1e12])
def test_scores_far_apart_do_not_overflow(causal, times):
    torch.manual_seed(0)
    query, key, value = projected(1, 2, 60, 24)  # a scale that is no power of two, and so rounds
    given, upstream = [times * query, times * key, value], torch.ones_like(query)
    found, *gradients = value_and_gradients(attention, given, upstream, causal=causal)
    exact = value_and_gradients(composed, [each.double() for each in given], upstream, causal=causal)
    assert_close(found, exact[0].bfloat16(), rtol=2**-7, atol=2**-9)
    assert_close(gradients[2], exact[3].bfloat16(), rtol=2**-6, atol=2**-8)
    assert all(each.isfinite().all() for each in gradients)


@either
def test_nan_reaches_every_query_that_sees_it(causal):
    torch.manual_seed(0)
    query, key, value = (each.clone() for each in projected(1, 1, 60, 16))
    key[0, 0, 50] = torch.nan
    missing = attention(query, key, value, causal=causal).isnan().any(-1)[0, 0]
    assert missing.tolist() == [not causal or row >= 50 for row in range(60)]
