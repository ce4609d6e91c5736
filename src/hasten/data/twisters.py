"""The states of NumPy's and Python's global generators, read no more often than they change.

They are asked for at every optimizer step, and few trainings draw from them. But each copies its 624 numbers one by one
to be read. So their memory is looked at first, and the state that was read last is given again where it is as it was
then. A spare normal number lies elsewhere: a state that has one is always read, but one that somebody else has put
behind the same words since is not seen in NumPy. What is given out or taken in stays here: it must not be changed.

NumPy tells where its memory lies. Python does not: it is the end of the object, the place and then the words, in
CPython's Modules/_randommodule.c. Where that does not hold, which is tried once, the state is always read.
"""

from __future__ import annotations

import ctypes
import random
import sys
from functools import lru_cache
from typing import Any

import numpy as np

PythonState = tuple[Any, ...]
_WORDS = 624
_BYTES = 4 * (_WORDS + 1)  # its words and the place in them, in NumPy as well: numpy/random/src/mt19937/mt19937.h
_Memory = ctypes.c_char * _BYTES
_python: Any = random.getstate.__self__  # pyright: ignore[reportFunctionMemberAccess]: it is a method of it

_numpy_seen: tuple[bytes, dict[str, Any]] | None = None  # the memory, and what it reads as
_python_seen: tuple[bytes, PythonState] | None = None


def numpy_state() -> dict[str, Any]:
    memory = _numpy_memory()
    if _numpy_seen is not None and _numpy_seen[0] == memory:
        return _numpy_seen[1]
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    _remember_numpy(memory, state)
    return state


def python_state() -> PythonState:
    global _python_seen
    if _python_view is None or _python.gauss_next is not None:
        return random.getstate()
    memory = _python_view.raw
    if _python_seen is None or _python_seen[0] != memory:
        _python_seen = memory, random.getstate()
    return _python_seen[1]


def set_numpy_state(state: dict[str, Any]) -> None:
    np.random.set_state(state)
    _remember_numpy(_numpy_memory(), state)


def _remember_numpy(memory: bytes | None, state: dict[str, Any]) -> None:
    global _numpy_seen
    _numpy_seen = None if memory is None or state["has_gauss"] else (memory, state)


def _numpy_memory() -> bytes | None:
    """None for a generator of another kind than NumPy's own choice: its memory has another form."""
    generator = np.random.get_bit_generator()  # pyright: ignore[reportAttributeAccessIssue]: its stubs lack it
    if type(generator) is not np.random.MT19937:
        return None
    return _numpy_view(generator).raw


@lru_cache(maxsize=4)  # which keeps the generators too, so that no view is of memory that is another's by now
def _numpy_view(generator: Any) -> Any:
    return _Memory.from_address(generator.ctypes.state_address)


def _view_of_pythons() -> Any:
    """None where its memory does not lie as is expected."""
    (kind,) = random.Random.__bases__
    if sys.implementation.name != "cpython" or kind.__basicsize__ < object.__basicsize__ + _BYTES:
        return None
    probe = random.Random(1)
    for _ in range(2):
        place, *words = np.frombuffer(_end_of(probe).raw, dtype=np.uint32).tolist()
        if probe.getstate()[1] != (*words, place):
            return None
        probe.random()
    return _end_of(_python)


def _end_of(generator: Any) -> Any:
    return _Memory.from_address(id(generator) + object.__basicsize__)


_python_view = _view_of_pythons()
