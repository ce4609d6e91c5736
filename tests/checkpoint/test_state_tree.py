"""A state that is taken apart, written, read and put together again is the same to the bit."""

from __future__ import annotations

import json
import math
import random
import struct
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hasten.checkpoint.safetensors_files import TYPES, tensors_in, write_tensors
from hasten.checkpoint.state_tree import flattened, rebuilt
from hasten.errors import Misconfigured

DTYPES = sorted(TYPES, key=str)
ARRAY_TYPES = [np.dtype(each) for each in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8")]


@pytest.fixture(scope="module")
def folder(memory):
    (memory / "states").mkdir()
    return memory / "states"


def through_files(state: Any, folder: Path) -> Any:
    """What comes back of it."""
    tree, tensors, _ = flattened(state)
    path = folder / "tensors.safetensors"
    path.unlink(missing_ok=True)
    write_tensors(path, tensors)
    return rebuilt(json.loads(json.dumps(tree, allow_nan=False)), tensors_in(path.read_bytes()))


def bits(tensor: Tensor) -> bytes:
    """Of its elements in their order, also of one that was turned, cut out, repeated or conjugated."""
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    whole.copy_(tensor.detach())
    return whole.reshape(-1).view(torch.uint8).numpy().tobytes()


def same(found: Any, wanted: Any) -> bool:
    """The same values, of the same types, in the same order, to the bit."""
    if isinstance(wanted, Tensor):
        shape = (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        return type(found) is Tensor and shape and bits(found) == bits(wanted)
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        pairs = zip(found.items(), wanted.items(), strict=False)
        return len(found) == len(wanted) and all(same(mine[0], its[0]) and same(mine[1], its[1]) for mine, its in pairs)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, np.ndarray | np.generic):
        return (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())
    if isinstance(wanted, float):
        return struct.pack("d", found) == struct.pack("d", wanted)
    return found == wanted


# States of every kind

VIEWS = {
    "itself": lambda tensor: tensor,
    "parameter": lambda tensor: torch.nn.Parameter(tensor) if tensor.is_floating_point() else tensor,
    "turned": lambda tensor: tensor.permute([*reversed(range(tensor.dim()))]),
    "channels last": lambda tensor: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor,
    "expanded": lambda tensor: tensor.unsqueeze(0).expand(3, *tensor.shape),
    "every second": lambda tensor: tensor[..., ::2] if tensor.dim() else tensor,
    "all but the first": lambda tensor: tensor[1:] if tensor.dim() else tensor,
    "conjugate": lambda tensor: tensor.conj(),
    "imaginary part of a conjugate": lambda tensor: tensor.conj().imag if tensor.is_complex() else tensor,
}


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    size = math.prod(shape) * dtype.itemsize
    content = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        content = bytes(byte & 1 for byte in content)
    whole = torch.frombuffer(bytearray(content + b"\0"), dtype=torch.uint8)[:size].clone().view(dtype).reshape(shape)
    return VIEWS[draw(st.sampled_from(sorted(VIEWS)))](whole)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(ARRAY_TYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * dtype.itemsize
    content = draw(st.binary(min_size=size, max_size=size))
    if dtype.kind == "b":
        content = bytes(byte & 1 for byte in content)
    array = np.frombuffer(content, dtype).reshape(shape)
    if not shape and draw(st.booleans()):
        return array[()]  # a scalar
    return draw(st.sampled_from([array, array.T, array[::-1] if shape else array]))


def float_of(number: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", number))[0]


MARKS = st.sampled_from(["tuple", "pairs", "float", "tensor", "array", "order", "scalar"])
words = st.text(st.characters(exclude_categories=()), max_size=5) | MARKS | st.just("__metadata__")
whole_numbers = st.integers() | st.sampled_from([2**63, -(2**64), 2**2000 - 1])
fractions = st.builds(float_of, st.integers(0, 2**64 - 1)) | st.floats()
plain = st.none() | st.booleans() | whole_numbers | fractions | words
keys = words | st.recursive(plain, lambda below: st.lists(below, max_size=2).map(tuple), max_leaves=3)
states = st.recursive(
    plain | tensors() | arrays(),
    lambda below: (
        st.lists(below, max_size=4)
        | st.lists(below, max_size=4).map(tuple)
        | st.dictionaries(words, below, max_size=4)
        | st.dictionaries(keys, below, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(states)
@example({"a": {"b": torch.empty(0)}, "a/b": torch.empty(3, 0, dtype=torch.int64)})
@example({"a": {"b": torch.zeros(1)}, "a/b": torch.ones(1)})
@example({1: torch.empty(0), "1": torch.empty(0, 2), 1.5: torch.zeros(2)})
@example({"__metadata__": torch.ones(2)})
@example({"\ud800": torch.ones(2), "\\ud800": torch.zeros(2)})
@example(torch.ones(()))
@example(torch.ones(2, dtype=torch.bfloat16)[::2])
@example({"state": torch.zeros(1), "": [torch.ones(1)]})
@example([float("nan"), -float("nan"), math.inf, -math.inf, -0.0, 5e-324])
def test_a_state_comes_back_to_the_bit(folder, state):
    assert same(through_files(state, folder), state)


def test_memory_keeps_its_order(folder):
    image = torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    state = {
        "channels last": image.to(memory_format=torch.channels_last),
        "a part of it": image.to(memory_format=torch.channels_last)[:, :, 1:, :2],
        "turned": image.permute(3, 1, 0, 2),
        "of a sum": (image.transpose(0, 1) + 1),
        "one channel": torch.zeros(2, 1, 4, 4).to(memory_format=torch.channels_last)[:, :, :, :3],
    }
    found = through_files(state, folder)
    assert same(found, state)
    for name in ("channels last", "turned", "of a sum"):
        assert found[name].stride() == state[name].stride(), name
    for name in ("channels last", "a part of it"):
        assert found[name].is_contiguous(memory_format=torch.channels_last), name


def test_a_tensor_that_is_met_again_is_stored_once_and_is_one_again(folder):
    weight = torch.randn(4, 3)
    module = torch.nn.Linear(3, 4)
    module.weight = torch.nn.Parameter(weight)
    state = {"module": module.state_dict(), "again": [weight, weight.t(), weight[:2]], "other": weight.clone()}
    _, stored, _ = flattened(state)
    assert sorted(stored) == ["again/1", "again/2", "module/bias", "module/weight", "other"]
    found = through_files(state, folder)
    assert found["again"][0] is found["module"]["weight"]
    assert same(found, {**state, "module": dict(state["module"])})


class Colour(IntEnum):
    RED = 1


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize("value", [Colour.RED, Pair(1, 2)])
def test_what_would_come_back_as_less_is_refused(value):
    with pytest.raises(Misconfigured, match="would lose its type") as caught:
        flattened({"kept": [value]})
    assert caught.value.where == "kept/0"


def test_the_states_of_torch_numpy_and_python_come_back(folder):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    of_each = {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(3, 3)}, 1: {}}
    group = {"lr": np.float64(0.1), "betas": (0.9, 0.999), "foreach": None, "params": [0, 1]}
    state = {
        "model": dict(model.state_dict()),
        "optimizer": {"state": of_each, "param_groups": [group]},
        "generators": [torch.get_rng_state(), random.Random(1).getstate(), np.random.RandomState(2).get_state()],
        "numpy": np.random.default_rng(1).bit_generator.state,
    }
    assert same(through_files(state, folder), state)


def nested(levels: int, wrap: Any) -> Any:
    state: Any = 1
    for _ in range(levels):
        state = wrap(state)
    return state


@pytest.mark.parametrize("wrap", [lambda below: (below,), lambda below: {7: below}], ids=["tuple", "numbered"])
def test_a_state_of_a_hundred_levels_comes_back_and_a_deeper_one_is_refused(folder, wrap):
    assert same(through_files(nested(100, wrap), folder), nested(100, wrap))
    with pytest.raises(Misconfigured, match="more than 100 levels deep"):
        flattened(nested(100_000, wrap))


# What no file can hold


class Wrapper(Tensor):
    """As libraries for quantized or spread tensors make them: a tensor around others."""

    @staticmethod
    def __new__(cls) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, (3,))  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (object, "is a object"),
        (lambda: b"bytes", "is a bytes"),
        (lambda: torch.float32, "is a dtype"),
        (lambda: np.array(["a"]), "NumPy array of <U1"),
        (lambda: np.array([object()]), "NumPy array of |O"),
        (lambda: np.array([1.0], ">f4"), "NumPy array of >f4"),
        (lambda: torch.eye(2).to_sparse(), "the layout torch.sparse_coo"),
        (lambda: torch.zeros(2, dtype=torch.complex128), "a tensor of torch.complex128"),
        (lambda: torch.zeros(2, device="meta"), "on meta without memory"),
        (Wrapper, "is a Wrapper on cpu without memory"),
    ],
)
def test_what_no_file_can_hold_is_refused_with_its_place_and_what_to_do(make, what):
    for state, place in (
        ({"run": {"states": [0, {3: make()}]}}, "run/states/1/3"),
        ([(make(),)], "0/0"),
        (make(), "the state"),
    ):
        with pytest.raises(Misconfigured) as caught:
            flattened(state)
        assert what in caught.value.what
        assert caught.value.where == place
        assert caught.value.fix


@pytest.mark.parametrize("key", [(1, b"a"), b"a", object], ids=lambda key: type(key).__name__)
def test_a_key_that_no_file_can_hold_is_refused_with_the_place_of_its_dictionary(key):
    with pytest.raises(Misconfigured) as caught:
        flattened({"run": {key: torch.zeros(1)}})
    assert caught.value.where == ("run/1" if isinstance(key, tuple) else "run")
