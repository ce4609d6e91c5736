"""A tensor is known again by three numbers: what is moved in one place changes them, and roundings hardly do."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.parallel.replicate.fingerprint import fingerprint

SEEDS = st.integers(0, 10**6)


def drawn(seed, count):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def apart(one, other):
    """By how much of the size of the second they differ."""
    found = (fingerprint(one) - fingerprint(other)).abs().max() / fingerprint(other)[1]
    return float(found)


@given(SEEDS, st.integers(2, 2000), st.data())
def test_two_numbers_that_change_places_are_seen_unless_their_signs_are_the_same(seed, count, data):
    tensor = drawn(seed, count)
    first, second = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    swapped = tensor.clone()
    swapped[[first, second]] = tensor[[second, first]]
    seen = not torch.equal(fingerprint(tensor), fingerprint(swapped))
    assert seen or torch.equal(tensor, swapped) or _same_sign(first, second)


def _same_sign(first, second):
    """One half of all pairs: what is read of them is their sum."""
    ones = torch.zeros(2, max(first, second) + 1)
    ones[0, first], ones[1, second] = 1.0, 1.0
    return torch.equal(*map(fingerprint, ones))


@given(SEEDS, st.integers(1, 50))
def test_a_row_that_is_drawn_anew_is_seen(seed, rows):
    tensor = drawn(seed, rows * 64).view(rows, 64)
    moved = tensor.clone()
    moved[seed % rows] = drawn(seed + 1, 64)
    assert apart(moved, tensor) > 1e-4


def test_pieces_of_a_large_tensor_are_told_apart():
    tensor = drawn(0, 2**21 + 5)
    turned = torch.cat((tensor[2**20 : 2**21], tensor[: 2**20], tensor[2**21 :]))
    assert apart(turned, tensor) > 1e-4


def test_a_large_tensor_whose_numbers_are_rounded_otherwise_is_the_same():
    tensor = drawn(0, 2**21).abs()
    assert apart(tensor * (1 + 1e-6 * drawn(1, 2**21)), tensor) < 1e-6


def test_none_one_number_and_any_format():
    assert fingerprint(torch.zeros(0)).tolist() == [0.0, 0.0, 0.0]
    assert fingerprint(torch.tensor(-3.0)).abs().tolist() == [3.0, 3.0, 0.0]
    assert fingerprint(torch.ones(2, 3, dtype=torch.bfloat16))[1] == 6.0**0.5
    assert fingerprint(torch.ones(4, dtype=torch.int64))[1] == 2.0


def test_the_imaginary_part_counts():
    number = torch.tensor([1 + 2j, 3 - 1j])
    assert apart(number.conj().resolve_conj(), number) > 0.1
    assert fingerprint(number)[1] == 15**0.5


@given(SEEDS, st.integers(2, 2000), st.sampled_from([float("nan"), float("inf"), -float("inf")]))
def test_numbers_that_are_not_finite_hide_nothing_beside_them(seed, count, other):
    tensor = drawn(seed, count)
    tensor[seed % count] = other
    moved, place = tensor.clone(), (seed + 1) % count
    moved[place] += 1.0
    assert fingerprint(tensor).isfinite().all()
    assert apart(moved, tensor) > 1e-4
    assert torch.equal(fingerprint(tensor), fingerprint(tensor.clone()))


@given(st.permutations([0.0, float("nan"), float("inf"), -float("inf")]))
def test_which_number_is_not_finite_is_seen(values):
    one, other = (fingerprint(torch.tensor([1.0, value])) for value in values[:2])
    assert not torch.equal(one, other)
