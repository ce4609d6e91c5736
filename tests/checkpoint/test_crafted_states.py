"""Trees that nobody of ours wrote give a state or are refused; they run nothing, and never end a process otherwise."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from hasten.checkpoint.state_tree import rebuilt
from hasten.errors import StorageFailed

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.zeros(2, dtype=torch.bfloat16),
    "empty": torch.empty(0, 2),
    "scalar": torch.tensor(7),
}


def test_what_is_well_formed_is_built():
    """So what follows is refused for what is wrong with it."""
    tree = [{"tensor": "a", "order": [1, 0]}, {"array": "a"}, {"array": "scalar", "scalar": True}, {"tensor": "b"}]
    turned, array, scalar, plain = rebuilt(tree, TENSORS)
    assert turned.equal(TENSORS["a"].t())
    assert array.shape == (2, 3)
    assert scalar == 7
    assert plain is TENSORS["b"]
    assert rebuilt({"tuple": [{"pairs": [[1, {"tuple": []}]]}]}, {}) == ({1: ()},)
    assert rebuilt({"float": "7ff0000000000000"}, {}) == math.inf


CRAFTED: dict[str, Any] = {
    "an unknown tensor": {"tensor": "c"},
    "an array that NumPy has no type for": {"array": "b"},
    "a scalar that is none": {"array": "a", "scalar": True},
    "an order that is too short": {"tensor": "a", "order": [0]},
    "an order from behind": {"tensor": "a", "order": [-1, -2]},
    "a tuple that is a number": {"tuple": 7},
    "a pair of one": {"pairs": [[1]]},
    "a pair that is a string": {"pairs": ["ab"]},
    "a key that is a list": {"pairs": [[[1], 2]]},
    "a float of a huge number": {"float": 10**400},
    "a float that is a word": {"float": "nan"},
    "a float that is finite": {"float": "3ff0000000000000"},
    "an infinity": math.inf,
    "lists in lists": json.loads("[" * 500 + "]" * 500),
    "keys in keys": json.loads('{"pairs":[[' * 150 + "1" + ",2]]}" * 150),
}


@pytest.mark.parametrize("tree", CRAFTED.values(), ids=CRAFTED)
def test_a_tree_that_makes_no_sense_is_refused(tree):
    with pytest.raises(StorageFailed, match="the state is invalid") as caught:
        rebuilt({"pairs": [[1, tree]]}, TENSORS)
    assert len(str(caught.value)) < 500
