"""What is put far is another one of its kind, and whatever has no distance stays."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import pytest

from hasten.parallel.far import DOWN, EMPTY, HALF, UP, WAYS, far, far_items, holds_float


class Phase(IntEnum):
    FIRST = 1


@pytest.mark.parametrize("way", [UP, DOWN], ids=["up", "down"])
@pytest.mark.parametrize(
    "value", [True, 3, 0.5, 1j, np.int64(3), np.uint8(3), np.float32(0.5), np.bool_(False)], ids=repr
)
def test_a_number_becomes_another_of_its_kind(value, way):
    found = far(value, way)
    assert found != value
    assert type(found) is type(value)


@pytest.mark.parametrize("value", [Phase.FIRST, "text", None, ("text",), np.timedelta64(3, "s")], ids=repr)
def test_what_has_no_distance_stays(value):
    assert {far(value, way) for way in WAYS} == {value}


def test_what_lies_in_collections_is_moved():
    assert far(("text", 3, None), HALF) == ("text", 1, None)
    assert far([1.0, [2.0]], HALF) == [0.5, [1.0]]
    assert far({"loss": 4.0}, HALF) == {"loss": 2.0}
    assert len(far_items((1,), UP)) > 50
    assert far_items(("text",), EMPTY) == ()
    assert far((1, 0.5), EMPTY) == (1, 0.5)


def test_a_float_is_found_wherever_it_lies():
    assert all(map(holds_float, (0.5, np.float32(0.5), (1, [0.5]), {"loss": 0.5})))
    assert not any(map(holds_float, (1, True, None, "0.5", (1, [2]), {0.5: 1})))
