"""The key of a cache changes with what decides a sample, and with nothing else."""

from __future__ import annotations

import collections
import functools
import importlib
import io
import itertools
import random
import re
import socket
import sys
import textwrap
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from hasten.data.cache.cache_key import key_of
from hasten.errors import DataFailed
from support.data.cached_samples import Holding, key

pytestmark = pytest.mark.trap(41)

numbers = itertools.count()


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self, left: int) -> None:
        self.left = left


class Linked:
    def __init__(self, size: int) -> None:
        self.size, self.back = size, self


def written(folder: Path, text: str, name: str) -> Any:
    """What a module of this text holds under a name. The module is another one each time, of the same name."""
    place = folder / f"{next(numbers)}"
    place.mkdir()
    (place / "users_module.py").write_text(textwrap.dedent(text))
    sys.modules.pop("users_module", None)
    sys.path.insert(0, str(place))
    try:
        importlib.invalidate_caches()
        return getattr(importlib.import_module("users_module"), name)
    finally:
        sys.path.remove(str(place))


FUNCTION = """
    SIZE = 224
    def helper(x):
        return x + SIZE
    def transform(x, by=2):
        return helper(x) + by
    class Transform:
        def __call__(self, x):
            return helper(x)
"""


@pytest.mark.parametrize("name", ["transform", "Transform"])
def test_code_counts_with_all_of_its_module(tmp_path, name):
    def of(text: str) -> str:
        found = written(tmp_path, text, name)
        return key(found() if isinstance(found, type) else found)

    assert of(FUNCTION) == of(FUNCTION)
    for old, new in (("224", "225"), ("x + SIZE", "x - SIZE")):
        assert of(FUNCTION) != of(FUNCTION.replace(old, new))


def test_what_a_function_closes_over_and_its_defaults_count():
    def scaled(by: int) -> Any:
        return lambda x, and_by=by: x * by * and_by

    assert key(scaled(2)) != key(scaled(3))
    assert key(scaled(2)) == key(scaled(2))


def test_a_version_that_the_user_raises_counts():
    assert key_of(Holding(1), 1, version=1) != key_of(Holding(1), 1, version=2)


def test_code_without_a_text_is_refused_with_the_remedy():
    module = types.ModuleType("typed")
    exec("def transform(x): return x", module.__dict__)
    with pytest.raises(DataFailed, match="whose source code is not found") as caught:
        key(module.__dict__["transform"])
    assert "cache_key() -> str" in caught.value.fix


DIFFERENT = {
    "numbers": lambda tmp: (1, 2, 1.0, True, 1j, None, "1", b"1", ...),
    "containers": lambda tmp: ([1], (1,), {1}, frozenset({1}), {1: 1}, [[1]], {"a": {1: (2,)}}, {"a": {1: (3,)}}),
    "order": lambda tmp: ([1, 2], [2, 1], {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "many indices": lambda tmp: (list(range(100)), list(range(99, -1, -1)), [*range(99), 99.0]),
    "subclasses": lambda tmp: (
        *(collections.OrderedDict(a=1), collections.defaultdict(int, a=1), collections.defaultdict(list, a=1)),
        *({"a": 1}, collections.Counter("a"), collections.deque([1]), collections.deque([2])),
    ),
    "arrays": lambda tmp: (np.zeros(4), np.zeros(4, np.float32), np.zeros((2, 2)), np.eye(2), np.float64(0), [0.0] * 4),
    "tensors": lambda tmp: (
        *(
            torch.zeros(4),
            torch.zeros(4, dtype=torch.bfloat16),
            torch.zeros(2, 2),
            torch.eye(2),
            nn.Parameter(torch.zeros(4)),
        ),
        torch.eye(3).to_sparse(),
    ),
    "functions of a package": lambda tmp: (np.mean, np.sum, np.load, torch.relu, functools.partial(np.mean, axis=0)),
    "attributes": lambda tmp: (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), types.SimpleNamespace(b=1)),
    "slots": lambda tmp: (Slotted(1), Slotted(2)),
    "circles": lambda tmp: (Linked(1), Linked(2)),
    "partials": lambda tmp: (functools.partial(int, base=2), functools.partial(int, base=3), functools.partial(float)),
    "parts of a data set": lambda tmp: (
        *(Subset(TensorDataset(torch.arange(5)), indices) for indices in ([0, 1], [0, 2])),
        ConcatDataset([TensorDataset(torch.arange(5))]),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_values_have_different_keys_and_equal_ones_equal_keys(name, tmp_path):
    found = [*map(key, DIFFERENT[name](tmp_path))]
    assert len({*found}) == len(found)
    assert [*map(key, DIFFERENT[name](tmp_path))] == found


class Opened:
    def __init__(self, file: object) -> None:
        self.inside = {"handle": file}


@pytest.mark.parametrize(
    "value",
    [
        *(io.BytesIO(b"1"), np.random.default_rng(0), torch.Generator(), random.Random(0)),
        *(iter([1]), socket.socket, threading.Lock()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_described_is_refused_with_its_place_and_a_remedy(value):
    part = value() if value is socket.socket else value
    with pytest.raises(DataFailed, match=re.escape("Holding.part.inside['handle']")) as caught:
        key(Opened(part))
    assert "cache_key() -> str" in caught.value.fix
    if value is socket.socket:
        part.close()


class Saying:
    def __init__(self, told: object) -> None:
        self.told, self.handle = told, io.BytesIO()

    def __len__(self) -> int:
        return 3

    def cache_key(self) -> object:
        return self.told


def test_an_object_can_say_it_itself():
    assert key_of(Saying("a"), 1) == key_of(Saying("a"), 1)
    assert key_of(Saying("a"), 1) != key_of(Saying("b"), 1)
    assert key(Opened(Saying("a"))) != key(Opened(Saying("b")))
