"""A checksum is another one for every other content."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.training.checksums import checksum

numbers = st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=9)


@given(numbers, st.data())
def test_numbers_that_change_places_or_value_change_it(values, data):
    one = torch.tensor(values)
    other = torch.tensor(data.draw(st.permutations(values) | numbers))
    assert (checksum(one) == checksum(other)) is (values == other.tolist() and one.signbit().equal(other.signbit()))


def test_one_and_minus_a_half_differ_although_their_bytes_have_one_sum():
    assert checksum(torch.tensor(1.0)) != checksum(torch.tensor(-0.5))


@pytest.mark.trap(36)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64])
def test_a_content_and_its_opposite_differ(dtype):
    size = 16
    bits = torch.arange(size * dtype.itemsize, dtype=torch.uint8)
    for content in (torch.zeros_like(bits), bits):
        assert checksum(content.view(dtype)) != checksum(content.bitwise_not().view(dtype))


@pytest.mark.trap(36)
@pytest.mark.parametrize("part", [slice(1, None), slice(1, 4), 1], ids=str)
def test_a_part_of_a_tensor_has_the_checksum_of_its_own_content(part):
    assert checksum(torch.arange(9.0)[part]) == checksum(torch.arange(9.0)[part].clone())


@pytest.mark.trap(36)
def test_what_is_only_marked_as_conjugated_or_negative_has_that_of_its_content():
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert checksum(numbers.conj()) == checksum(numbers.conj().resolve_conj()) != checksum(numbers)
    assert checksum(numbers.conj().imag) == checksum(numbers.conj().imag.resolve_neg()) != checksum(numbers.imag)


class Own(nn.Parameter):
    pass


@pytest.mark.trap(36)
def test_a_class_of_ones_own_has_that_of_its_content():
    assert checksum(Own(torch.ones(3))) == checksum(torch.ones(3)) != 0


@pytest.mark.parametrize("size", [1, 7, 8, 9, (1 << 21) - 8, (1 << 21) + 3])
def test_every_byte_counts_wherever_it_is(size):
    content = torch.arange(size, dtype=torch.int64).to(torch.uint8)
    before = checksum(content)
    for place in {0, size // 2, size - 1}:
        content[place] += 1
        assert checksum(content) != before
        content[place] -= 1
    assert checksum(content) == before


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.float64, torch.complex64])
def test_it_is_of_the_content_not_of_its_order_in_memory(dtype):
    rows = torch.arange(12).reshape(3, 4).to(torch.float32).to(dtype)
    assert checksum(rows.t().contiguous().t()) == checksum(rows) == checksum(nn.Parameter(rows, requires_grad=False))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:Sparse")
@pytest.mark.parametrize(
    "make",
    [
        Tensor.to_sparse,
        Tensor.to_sparse_csr,
        Tensor.to_sparse_csc,
        lambda tensor: tensor.to_sparse_bsr((1, 1)),
        lambda tensor: tensor.to_sparse_bsc((1, 1)),
        lambda tensor: torch.quantize_per_tensor(tensor, 0.5, 0, torch.qint8),
    ],
    ids=["coo", "csr", "csc", "bsr", "bsc", "quantized"],
)
def test_what_is_sparse_or_quantized_has_one_of_its_places_and_its_values(make):
    first = torch.eye(4)
    others = [first * 2, first.flip(0), -first]
    assert checksum(make(first)) == checksum(make(first.clone()))
    assert len({checksum(make(each)) for each in (first, *others)}) == 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.ones(3, device="meta"),
    ],
    ids=["nested", "meta"],
)
def test_what_has_no_dense_memory_has_none(make):
    assert checksum(make()) is None
