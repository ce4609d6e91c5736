"""The key of a cache changes with everything that decides a sample, and with nothing else."""

from __future__ import annotations

import array
import collections
import datetime
import enum
import functools
import io
import operator
import os
import random
import re
import socket
import subprocess
import sys
import textwrap
import threading
import types
import typing

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from hasten.data import cache_key
from hasten.data.cache_key import key_of
from hasten.errors import DataFailed
from kept_samples import Holding, key, made

pytestmark = pytest.mark.trap(41)


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Size(typing.NamedTuple):
    height: int
    width: int = 7


class Slotted:
    __slots__ = ("__hidden", "left", "right")

    def __init__(self, left: int, hidden: int = 0) -> None:
        self.left, self.__hidden = left, hidden


class Linked:
    def __init__(self, size: int) -> None:
        self.size, self.back = size, self


# Code, as text, so that two versions of it can be compared.


FUNCTION = """
SIZE = 224
MEANS = {"a": [0.5, 0.25]}
def helper(x):
    return x + 1
class Base:
    weight = 3
    def scaled(self, x):
        return x * self.weight
class Inner(Base):
    '''What it is.'''
    @property
    def size(self):
        return SIZE
    @staticmethod
    def fixed(x):
        return x - 7
    @functools.lru_cache
    def kept(self):
        return 11
def transform(x, by=2, *, also=(3, 4)):
    '''What it does.'''
    # A remark.
    inner = Inner()
    words = x in {"b", "c", "d"}
    def nested(y):
        return y * 5 + MEANS["a"][0]
    return nested(helper(x)) + by + inner.size + words
"""


def test_the_same_code_has_the_same_key():
    assert key(made(FUNCTION, functools=functools)) == key(made(FUNCTION, functools=functools))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 224", "SIZE = 225"),
        ("0.25", "0.26"),
        ("x + 1", "x - 1"),
        ("x + 1", "x + 2"),
        ("by=2", "by=3"),
        ("also=(3, 4)", "also=(3, 5)"),
        ("y * 5", "y * 6"),
        ('{"b", "c", "d"}', '{"b", "c", "e"}'),
        ("weight = 3", "weight = 4"),
        ("x * self.weight", "x / self.weight"),
        ("return SIZE", "return SIZE + 1"),
        ("x - 7", "x - 8"),
        ("return 11", "return 12"),
    ],
)
def test_a_change_of_code_or_of_a_constant_changes_the_key(old, new):
    assert old in FUNCTION
    before, after = (made(text, functools=functools) for text in (FUNCTION, FUNCTION.replace(old, new)))
    assert key(before) != key(after)
    assert key(functools.partial(before, by=1)) != key(functools.partial(after, by=1))


@pytest.mark.parametrize(("old", "new"), [("# A remark.", "# Another."), ("\ndef helper", "\n\n\ndef helper")])
def test_remarks_and_empty_lines_do_not_count(old, new):
    before, after = (made(text, functools=functools) for text in (FUNCTION, FUNCTION.replace(old, new)))
    assert key(before) == key(after)


def test_an_object_counts_with_the_code_of_its_class():
    source = "class T:\n def __call__(self, x):\n  return x * 2"
    before, after = made(source, "T"), made(source.replace("2", "3"), "T")
    assert key(before()) != key(after())  # pyright: ignore[reportCallIssue]
    assert key(before()) == key(made(source, "T")())  # pyright: ignore[reportCallIssue]


def test_the_data_set_s_own_code_counts():
    source = "class D:\n def __len__(self): return 3\n def __getitem__(self, i): return i * 2"
    keys = {key_of(made(text, "D")(), 1) for text in (source, source.replace("* 2", "* 3"))}
    assert len(keys) == 2


@pytest.mark.parametrize(("old", "new"), [("w * 2", "w * 3"), ("w: int = 7", "w: int = 8")])
def test_code_and_defaults_of_a_named_tuple_count(old, new):
    source = "class Size(NamedTuple):\n h: int\n w: int = 7\n def wide(self):\n  return self.w * 2"
    before, after = (made(text, "Size", NamedTuple=typing.NamedTuple) for text in (source, source.replace(old, new)))
    assert key(before(1, 2)) != key(after(1, 2))
    assert key(before(1, 2)) == key(made(source, "Size", NamedTuple=typing.NamedTuple)(1, 2))


def test_what_a_function_closes_over_counts():
    def scaled(by):
        return lambda x: x * by

    assert key(scaled(2)) != key(scaled(3))
    assert key(scaled(2)) == key(scaled(2))


def test_a_module_of_the_user_s_own_counts_by_its_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("helping_here", "helping_inside"):
        (tmp_path / f"{module}.py").write_text("SIZE = 2\n")
    function = made(
        """
        import helping_here
        def transform(x):
            import helping_inside
            return helping_here.SIZE + helping_inside.SIZE
        """
    )
    keys = [key(function)]
    for module in ("helping_here", "helping_inside"):
        (tmp_path / f"{module}.py").write_text("SIZE = 33\n")
        keys.append(key(function))
    assert len(set(keys)) == 3


def test_installed_code_counts_by_name_and_version(monkeypatch):
    assert key(torch.relu) != key(torch.neg)
    assert key(nn.functional.relu) != key(nn.functional.gelu)
    before = key_of(Holding(1), 1)
    monkeypatch.setattr(cache_key, "version_of", lambda package: "another")
    assert key_of(Holding(1), 1) != before


def test_the_schema_of_the_cache_counts():
    assert key_of(Holding(1), 1) != key_of(Holding(1), 2)


# Values


DIFFERENT = {
    "numbers": lambda tmp: (1, 2, 1.0, True, 1j, None, "1", b"1", ...),
    "text": lambda tmp: ("a", "b", "", ("a", "b"), ("ab",)),
    "containers": lambda tmp: ([1], (1,), {1}, frozenset({1}), {1: 1}, [[1]], {"a": {1: (2,)}}, {"a": {1: (3,)}}),
    "order": lambda tmp: ([1, 2], [2, 1], {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "many indices": lambda tmp: (list(range(100)), list(range(99, -1, -1)), [*range(99), 99.0]),
    "ranges": lambda tmp: (range(3), range(1, 3), slice(3), slice(1, 3)),
    "subclasses": lambda tmp: (
        *(collections.OrderedDict(a=1), collections.defaultdict(int, a=1), collections.defaultdict(list, a=1)),
        *({"a": 1}, collections.Counter("a"), collections.deque([1]), collections.deque([2])),
    ),
    "arrays": lambda tmp: (np.zeros(4), np.zeros(4, np.float32), np.zeros((2, 2)), np.eye(2), np.float64(0), [0.0] * 4),
    "arrays of objects": lambda tmp: (np.array(["a", None]), np.array(["b", None]), np.array(["a", "b"])),
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
    "named tuples": lambda tmp: (
        *(Size(2, 3), Size(3, 2), (2, 3), collections.namedtuple("Size", "width height")(2, 3)),
        *(collections.namedtuple("Size", "height width")(2, 3), collections.namedtuple("Area", "height width")(2, 3)),
    ),
    "objects of Python's own library": lambda tmp: (
        *(operator.itemgetter(1), operator.itemgetter(2), operator.attrgetter("a"), operator.attrgetter("b")),
        *(operator.methodcaller("a", 1), operator.methodcaller("a", 2), operator.methodcaller("a", b=2)),
        *(array.array("i", [1, 2]), array.array("i", [1, 3]), array.array("f", [1, 2]), [1, 2]),
    ),
    "functions of a package": lambda tmp: (np.mean, np.sum, np.load, torch.relu, functools.partial(np.mean, axis=0)),
    "enums": lambda tmp: (Level.LOW, Level.HIGH),
    "dtypes": lambda tmp: (torch.float32, torch.float64, np.dtype("f4"), torch.device("cpu")),
    "times": lambda tmp: (datetime.timedelta(1), datetime.timedelta(2), datetime.date(2020, 1, 1)),
    "patterns": lambda tmp: (re.compile("a"), re.compile("b"), re.compile("a", re.IGNORECASE)),
    "pictures": lambda tmp: (
        Image.new("L", (2, 3)),
        Image.new("L", (3, 2)),
        Image.new("L", (2, 3), 1),
        Image.new("1", (2, 3)),
    ),
    "attributes": lambda tmp: (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), types.SimpleNamespace(b=1)),
    "slots": lambda tmp: (Slotted(1), Slotted(2), Slotted(1, hidden=5)),
    "circles": lambda tmp: (Linked(1), Linked(2)),
    "bound methods": lambda tmp: ("a".join, "b".join, Linked(1).__init__, Linked(2).__init__),
    "partials": lambda tmp: (functools.partial(int, base=2), functools.partial(int, base=3), functools.partial(float)),
    "parts of a data set": lambda tmp: (
        *(Subset(TensorDataset(torch.arange(5)), indices) for indices in ([0, 1], [0, 2])),
        ConcatDataset([TensorDataset(torch.arange(5))]),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_values_have_different_keys(name, tmp_path):
    values = DIFFERENT[name](tmp_path)
    assert len({key(value) for value in values}) == len(values)


@pytest.mark.parametrize("name", DIFFERENT)
def test_equal_values_have_equal_keys(name, tmp_path):
    assert [*map(key, DIFFERENT[name](tmp_path))] == [*map(key, DIFFERENT[name](tmp_path))]


def test_a_module_counts_by_its_weights():
    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    assert key(model(0)) == key(model(0))
    assert key(model(0)) != key(model(1))
    assert key(model(0).train()) != key(model(0).eval())


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner),
    max_leaves=8,
)


@given(one=PLAIN, other=PLAIN)
def test_values_that_read_differently_have_different_keys(one, other):
    assert (key(one) == key(other)) == (repr(one) == repr(other))


# What cannot be told, and what says it itself


class Opened:
    def __init__(self, file: object) -> None:
        self.inside = {"handle": file}


@pytest.mark.parametrize(
    "value",
    [
        *(io.BytesIO(b"1"), np.random.default_rng(0), torch.Generator(), random.Random(0)),
        *(iter([1]), socket.socket, threading.local()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_told_is_refused_with_its_place_and_a_remedy(value):
    part = value() if value is socket.socket else value
    with pytest.raises(DataFailed, match=re.escape("Holding.part.inside['handle'] is ")) as caught:
        key(Opened(part))
    assert "cache_key() -> str" in caught.value.fix
    if value is socket.socket:
        part.close()


@pytest.mark.parametrize("value", [threading.Lock(), threading.RLock(), __import__("logging").getLogger("x")])
def test_what_holds_no_data_is_passed_over(value):
    assert key(Opened(value)) == key(Opened(value))


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


def test_what_it_says_must_be_text():
    with pytest.raises(DataFailed, match=r"Saying.cache_key\(\) gave 3 \(int\)"):
        key_of(Saying(3), 1)


@pytest.mark.proof
def test_another_process_finds_the_same_key(tmp_path):
    """Text is hashed with another seed there, so the order of sets is another; and every object lies elsewhere."""
    (tmp_path / "users.py").write_text(
        textwrap.dedent("""
        import functools, numpy as np, torch
        from hasten.data.cache_key import key_of
        WORDS = {"one", "two", "three", "four", "five"}
        class Photos:
            def __init__(self):
                self.words, self.scale = set(WORDS), functools.partial(np.multiply, 2.0)
                self.model = torch.nn.Linear(2, 2, bias=False).requires_grad_(False).fill_(1.0) if 0 else None
            def __len__(self):
                return 3
            def __getitem__(self, index):
                return index if "one" in {"one", "two", "six"} else len(WORDS)
        print(key_of(Photos(), 1))
        """)
    )
    keys = {
        subprocess.run(
            [sys.executable, tmp_path / "users.py"],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(keys) == 1
