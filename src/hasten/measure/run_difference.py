"""Whether two runs are equal to the last bit; if not, the first value in which they differ.

Compared are the lines of both logs and the states that both were saved with. Numbers are compared by their bits, so a
NaN equals itself and a zero differs from a negative zero. Readings of clocks and memory counters are ignored.
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

COMPARED = ("trained", "evaluated", "finished")  # events of a log; notices have seconds and paths in them
MEASURED = frozenset({"seconds", "samples_per_second", "data_wait_share", "memory_bytes", "weights"})  # their fields
LONGEST = 80  # characters of a value as it is shown
_UNREADABLE = "unreadable"  # the event of a line that is none


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """step: the optimizer step; what: the value's name, with the index of a tensor's element. expected, found: as text,
    a float also as float.hex() writes it."""

    step: int
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"at step {self.step:,} {self.what} is {self.found}, and should be {self.expected}"


def lines_of(log: bytes) -> list[dict[str, Any]]:
    """The complete lines of a log that can be compared, in order. A line that is no event is one of its own kind."""
    found: list[dict[str, Any]] = []
    for text in log.split(b"\n")[:-1]:  # a last line without its end is not complete
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
    """whole: `found` is the whole log of a run; otherwise it may end early."""
    for wanted, line in zip(expected, found, strict=False):
        if _key(wanted) != _key(line):
            return _out_of_place(wanted, line)
        for name in {**wanted, **line}:
            if name not in MEASURED:
                place = name if wanted["event"] == "trained" else f"{name} of {_line(wanted)}"
                difference = first_in_states(wanted.get(name), line.get(name), step=_step(wanted), place=place)
                if difference is not None:
                    return difference
    if len(found) > len(expected):
        return _out_of_place(None, found[len(expected)])
    if whole and len(found) < len(expected):
        return _out_of_place(expected[len(found)], None)
    return None


def first_in_states(expected: Any, found: Any, *, step: int, place: str = "") -> Difference | None:
    """Of two trees of dictionaries, lists, tuples, plain values, tensors and NumPy arrays.

    step: at which both were taken. place: the trees' name.
    """
    wanted, came = dict(_leaves(expected, place)), dict(_leaves(found, place))
    for what in wanted | came:
        if what not in wanted or what not in came:
            one, other = ("there" if what in each else "missing" for each in (wanted, came))
            return Difference(step=step, what=what, expected=one, found=other)
        difference = _difference(wanted[what], came[what])
        if difference is not None:
            index, one, other = difference
            return Difference(step=step, what=f"{what}{index}", expected=one, found=other)
    return None


# ── lines ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _key(line: Mapping[str, Any]) -> tuple[str, Any]:
    return line["event"], _step(line)


def _step(line: Mapping[str, Any]) -> int:
    step = line.get("step", line.get("steps", 0))
    return step if isinstance(step, int) else 0


def _line(line: Mapping[str, Any]) -> str:
    return f"the line {line['event']!r} of the log"


def _out_of_place(wanted: Mapping[str, Any] | None, line: Mapping[str, Any] | None) -> Difference:
    """wanted, line: None at the end of a log."""
    shown = line if wanted is None else wanted
    assert shown is not None
    expected, found = ("missing", "there") if wanted is None else ("there", "missing")
    return Difference(step=_step(shown), what=_line(shown), expected=expected, found=found)


# ── states ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _leaves(tree: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Place and value of all that the tree holds. A pair, kind and length, stands for a container beside its items."""
    if isinstance(tree, Mapping):
        yield place, ("dict", None)  # missing keys have their own places
        items = cast("Mapping[Any, Any]", tree).items()
    elif isinstance(tree, list | tuple):
        sequence = cast("Sequence[Any]", tree)
        yield place, (type(sequence).__name__, len(sequence))
        items = enumerate(sequence)
    else:
        yield place, tree
        return
    for key, item in items:
        yield from _leaves(item, f"{place}/{key}" if place else str(key))


def _difference(expected: Any, found: Any) -> tuple[str, str, str] | None:
    """Index of the element, and both values; None where they are equal."""
    if _is_array(expected) and _is_array(found):
        return _in_tensors(_as_tensor(expected), _as_tensor(found))
    if type(expected) is type(found):
        bits = [struct.pack("<d", each) if isinstance(each, float) else each for each in (expected, found)]
        if bits[0] == bits[1]:
            return None
    return "", _shown(expected), _shown(found)


def _in_tensors(expected: Tensor, found: Tensor) -> tuple[str, str, str] | None:
    if (expected.dtype, expected.shape) != (found.dtype, found.shape):
        return "", _shown(expected), _shown(found)
    one, other = _bytes(expected), _bytes(found)
    if not torch.equal(one, other):
        place = int((one != other).any(1).nonzero()[0])
        index = [int(each) for each in np.unravel_index(place, expected.shape)]
        return f"{index}" if index else "", _element(expected, place), _element(found, place)
    return None


def _element(tensor: Tensor, place: int) -> str:
    """place: in the order of the tensor's indices."""
    return _shown(tensor.contiguous().reshape(-1)[place].item())


def _shown(value: Any) -> str:
    if _is_array(value):
        tensor = _as_tensor(value)
        return f"a tensor of {tensor.dtype} {list(tensor.shape)}"
    if isinstance(value, tuple):
        kind, length = value
        return f"a {kind}" + ("" if length is None else f" of length {length}")
    return shortened(repr(value), LONGEST) + (f" ({value.hex()})" if isinstance(value, float) else "")


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | np.generic)


def _as_tensor(value: Any) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def _bytes(tensor: Tensor) -> Tensor:
    """uint8 [elements, bytes of one], in the order of its indices."""
    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)
