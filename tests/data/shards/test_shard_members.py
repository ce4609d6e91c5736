"""What values become in a shard, and that they come back as they were."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.shards.shard_members import LARGEST_TEXT, decoded, encoded

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=12,
)


def back(sample: object) -> dict[str, object]:
    return {extension: decoded(extension, content) for extension, content in encoded(sample).items()}


@given(PLAIN)
def test_plain_values_come_back_equal(value):
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18:
        with pytest.raises(ValueError, match="too large a whole number"):
            encoded({"a": value})
        return
    ((_, found),) = back({"a": value}).items()
    assert type(found) is type(value)
    assert found == value or (isinstance(value, float) and math.isnan(value)) or "nan" in repr(value)


@pytest.mark.parametrize(
    ("sample", "extensions"),
    [
        ({"image": np.zeros(2), "label": 3}, ["image.npy", "label.cls"]),
        ({"jpg": b"\xff\xd8\xff", "cls": 3}, ["jpg", "cls"]),
        ({"photo": b"\x89PNG\r\n\x1a\n"}, ["photo.png"]),
        ({"mp3": b"sound"}, ["mp3"]),
        ({"pth": b"sound"}, ["pth.bin"]),
        ({"left.npy": np.zeros(2), "right": torch.zeros(2)}, ["left.npy", "right.npy"]),
        ((torch.zeros(2), 3, "text", b"x"), ["0.npy", "1.cls", "2.txt", "3.bin"]),
        ([np.float32(1.5), np.int64(3), np.bool_(True)], ["0.npy", "1.cls", "2.npy"]),
        (7, ["0.cls"]),
        (torch.tensor(7), ["0.npy"]),
        ({"a": 1.5, "b": True, "c": None, "d": [1], "e": {"x": [1]}}, [f"{name}.json" for name in "abcde"]),
    ],
)
def test_each_kind_of_value_has_its_member(sample, extensions):
    assert list(encoded(sample)) == extensions


class Own:
    pass


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        ({"a": Own()}, r"test_shard_members\.Own has no member"),
        ({"a": {1, 2}}, "set has no member"),
        ({"a": np.array([Own()])}, "an array of object cannot be written"),
        ({"a": np.ma.masked_array([1, 2], [True, False])}, r"MaskedArray has no member"),
        ({"a": torch.zeros(2, dtype=torch.bfloat16)}, "torch.bfloat16 on cpu cannot become an array"),
        ({"a": torch.zeros(2).to_sparse()}, "cannot become an array"),
        ({"a": [1, (2, 3)]}, "would not come back equal from JSON"),
        ({"a": {1: 2}}, "would not come back equal from JSON"),
        ({"a": [Own()]}, "it cannot be JSON"),
        ({"a": "x" * (LARGEST_TEXT + 1)}, "are the most of a text"),
        ({"A": 1}, "'A' cannot be an extension"),
        ({"a": 1, "a.cls": 2}, r"two parts 'a\.cls'"),
        ({"__key__": "7", "cls": 3}, "it has a __key__, which packing would replace by a number"),
        ({}, "it is empty"),
    ],
)
def test_what_has_no_member_is_refused_with_its_reason(sample, why):
    with pytest.raises(ValueError, match=why):
        encoded(sample)
