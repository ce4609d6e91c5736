"""Whether two runs are one to the last bit; where they part, if they are not.

A run is compared by what it has logged and by the states that it was saved with, as plain values: nothing here knows
how either came to be. Numbers are compared by their bits, so a NaN equals itself and a zero is no negative zero. What a
clock or a memory counter has told says nothing of the training, and is left out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hasten.facts.formatting import shortened

COMPARED = ("trained", "evaluated", "finished")  # events of a log; notices tell seconds and paths too
MEASURED = frozenset({"seconds", "samples_per_second", "data_wait_share", "memory_bytes", "weights"})  # their fields
LONGEST = 80  # characters of a value as it is told
_UNREADABLE = "unreadable"  # stands for the event of a line that is none


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """As it is told. hex: of a number with a fraction, as float.hex() writes it; the bits of a tensor's NaN, as there
    are many. None for all else."""

    text: str
    hex: str | None = None

    def __str__(self) -> str:
        return self.text if self.hex is None else f"{self.text} ({self.hex})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first one. step: the optimizer step; what: the value, by its name, and the index of a tensor's element."""

    step: int
    what: str
    expected: Value
    found: Value

    def __str__(self) -> str:
        return f"at step {self.step:,} {self.what} is {self.found}, and should be {self.expected}"


@dataclass(frozen=True, slots=True)
class Extent:
    """How much a state holds. bytes: of its tensors; values: that are no tensors."""

    tensors: int = 0
    bytes: int = 0
    values: int = 0


def lines_of(log: bytes) -> list[dict[str, Any]]:
    """The whole lines of a log that can be compared, in their order. One that is no event stays, as what it is not."""
    found: list[dict[str, Any]] = []
    for text in log.split(b"\n")[:-1]:  # a last line without its end is not there yet
        try:
            line = json.loads(text)
            event = line["event"]
        except (ValueError, TypeError, KeyError, RecursionError):
            line, event = {"event": _UNREADABLE, "text": text.decode(errors="replace")}, _UNREADABLE
        if event in (*COMPARED, _UNREADABLE):
            found.append(line)
    return found


def first_in_lines(
    expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], *, whole: bool
) -> Difference | None:
    """whole: what was found is all of a run, not its beginning."""
    for number, (wanted, line) in enumerate(zip(expected, found, strict=False)):
        if _key(wanted) != _key(line):
            return _out_of_place(wanted, line, found[:number])
        for name in {**wanted, **line}:
            if name not in MEASURED:
                difference = first_in_states(
                    wanted.get(name), line.get(name), step=_step(wanted), place=_named(wanted, name)
                )
                if difference is not None:
                    return difference
    if len(found) > len(expected):
        return _out_of_place(None, found[len(expected)], found[: len(expected)])
    if whole and len(found) < len(expected):
        return _out_of_place(expected[len(found)], None, found)
    return None


def first_in_states(expected: Any, found: Any, *, step: int, place: str = "") -> Difference | None:
    """Of two trees of dictionaries, lists, tuples, plain values, tensors and NumPy arrays.

    step: at which both were taken. place: the trees' name.
    """
    return next(_differences(expected, found, step, place), None)


def extent_of(state: Any) -> Extent:
    if isinstance(state, Tensor | np.ndarray | np.generic):
        return Extent(1, _as_tensor(state).nbytes, 0)
    if isinstance(state, Mapping):
        parts = [extent_of(each) for each in cast("Mapping[Any, Any]", state).values()]
    elif isinstance(state, list | tuple):
        parts = [extent_of(each) for each in cast("Sequence[Any]", state)]
    else:
        return Extent(0, 0, 1)
    return Extent(*(sum(getattr(part, name) for part in parts) for name in ("tensors", "bytes", "values")))


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _key(line: Mapping[str, Any]) -> tuple[str, Any]:
    return line["event"], _step(line)


def _step(line: Mapping[str, Any]) -> int:
    step = line.get("step", line.get("steps", 0))
    return step if isinstance(step, int) else 0


def _named(line: Mapping[str, Any], name: str) -> str:
    return name if line["event"] == "trained" else f"{name} of the line {line['event']!r}"


def _out_of_place(
    wanted: Mapping[str, Any] | None, line: Mapping[str, Any] | None, before: Sequence[Mapping[str, Any]]
) -> Difference:
    """wanted, line: None where there is no line any more."""
    keys = [_key(each) for each in before]
    if line is not None and _key(line) in keys:
        again, times = line, keys.count(_key(line)) + 1
        return Difference(
            step=_step(again), what=_line(again), expected=Value(text="there once"), found=Value(text=f"there {times}×")
        )
    if wanted is not None:
        what, missing = _line(wanted), Value(text="missing")
        return Difference(step=_step(wanted), what=what, expected=Value(text="there"), found=missing)
    assert line is not None
    return Difference(step=_step(line), what=_line(line), expected=Value(text="missing"), found=Value(text="there"))


def _line(line: Mapping[str, Any]) -> str:
    return f"the line {line['event']!r} of the log"


# ── states ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _differences(expected: Any, found: Any, step: int, place: str) -> Iterator[Difference]:
    def differ(wanted: Any, came: Any, what: str = "") -> Difference:
        return Difference(step=step, what=f"{place}{what}", expected=_value(wanted), found=_value(came))

    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        wanted, came = cast("Mapping[Any, Any]", expected), cast("Mapping[Any, Any]", found)
        for key in [*wanted, *(key for key in came if key not in wanted)]:
            if key in wanted and key in came:
                yield from _differences(wanted[key], came[key], step, _below(place, key))
            else:
                there = [Value(text="there" if key in each else "missing") for each in (wanted, came)]
                yield Difference(step=step, what=_below(place, key), expected=there[0], found=there[1])
    elif _is_array(expected) and _is_array(found):
        yield from _in_tensors(_as_tensor(expected), _as_tensor(found), differ)
    elif type(cast(Any, expected)) is not type(cast(Any, found)):
        yield differ(expected, found)
    elif isinstance(expected, list | tuple):
        wanted, came = cast("Sequence[Any]", expected), cast("Sequence[Any]", found)
        if len(wanted) != len(came):
            yield differ(len(wanted), len(came), " has a length that")
        for number, (one, other) in enumerate(zip(wanted, came, strict=False)):
            yield from _differences(one, other, step, _below(place, number))
    elif isinstance(expected, float):
        if struct.pack("<d", expected) != struct.pack("<d", found):
            yield differ(expected, found)
    elif expected != found:
        yield differ(expected, found)


def _in_tensors(expected: Tensor, found: Tensor, differ: Any) -> Iterator[Difference]:
    for name, of in (("type", "dtype"), ("shape", "shape")):
        wanted, came = getattr(expected, of), getattr(found, of)
        if wanted != came:
            yield differ(_Word(wanted), _Word(came), f" has a {name} that")
            return
    one, other = _bytes(expected), _bytes(found)
    if not torch.equal(one, other):
        place = int((one != other).any(1).nonzero()[0])
        index = [int(each) for each in np.unravel_index(place, expected.shape)]
        yield differ(_Element(expected, place), _Element(found, place), f"{index}" if index else "")
    elif expected.numel() and expected.stride() != found.stride():
        yield differ(expected.stride(), found.stride(), " has strides in memory that")


@dataclass(frozen=True, slots=True)
class _Word:
    word: Any


@dataclass(frozen=True, slots=True)
class _Element:
    tensor: Tensor
    place: int  # in the order of its indices

    def told(self) -> Value:
        value = self.tensor.contiguous().reshape(-1)[self.place].item()
        if isinstance(value, float) and value != value:
            bits = bytes(_bytes(self.tensor)[self.place].tolist()[::-1]).hex()
            return Value(text=repr(value), hex=f"0x{bits}")
        return _value(value)


def _value(value: Any) -> Value:
    if isinstance(value, _Element):
        return value.told()
    if isinstance(value, _Word):
        return Value(text=str(list(value.word)) if isinstance(value.word, torch.Size) else str(value.word))
    if isinstance(value, float):
        return Value(text=repr(value), hex=value.hex())
    if _is_array(value):
        tensor = _as_tensor(value)
        return Value(text=f"a tensor of {tensor.dtype} {list(tensor.shape)}")
    return Value(text=shortened(repr(value), LONGEST))


def _below(place: str, key: object) -> str:
    return f"{place}/{key}" if place else str(key)


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | np.generic)


def _as_tensor(value: Any) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def _bytes(tensor: Tensor) -> Tensor:
    """uint8 [elements, bytes of one], in the order of its indices."""
    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)
