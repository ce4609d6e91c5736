"""What is put far is another one of its kind, and whatever has no distance stays."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.parallel.far import WAYS, far, far_items


@pytest.mark.parametrize("by", WAYS[:2])
@pytest.mark.parametrize(
    "value", [True, 3, 0.5, 1j, np.int64(3), np.uint8(3), np.float32(0.5), np.bool_(False)], ids=repr
)
def test_a_number_becomes_another_of_its_kind(value, by):
    found = far(value, by)
    assert found != value
    assert type(found) is type(value)


def test_what_lies_in_collections_is_moved_and_what_has_no_distance_stays():
    up, down, _ = WAYS
    assert far(("text", 1, None), up) == ("text", 1 + up, None)
    assert far([1.0], down) == [1.0 + down] * abs(down)
    assert far_items((1,), up) == (1 + up,) * up


def test_collections_are_emptied_where_numbers_stay():
    assert far([1.0], 0) == []
    assert far_items(("text",), 0) == ()
    assert far((1, 0.5), 0) == (1, 0.5)
