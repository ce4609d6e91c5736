"""Records from the tables of a TOML or JSON file, each value checked against the record's annotations.

A file is untrusted text: an unknown key, a missing one, a wrong type or a number that is not finite is refused, with
the place of the value and what to write instead.
"""

from __future__ import annotations

import math
import re
import reprlib
import sys
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hasten.facts.choice import Preserves
from hasten.facts.formatting import did_you_mean, shortened

Location = tuple[str | int, ...]  # keys of tables and positions in arrays, such as ("choice", 0, "value")

_EXPECTED = {str: 'text in quotes: "…"', int: "a whole number", bool: "true or false", dict: "a table"}
_SCALARS = (str, bool, int, float)
_LONGEST = 300  # characters of a message, which may quote the file
_LONGEST_TEXT = 4096  # characters of a plain value, which may be a path
_MOST_BITS = 64  # of a whole number; Python writes none of more than 4,300 digits


_MANY_PARTS = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++\s*+\.\s*+){200}""")


def toml_document(text: str) -> dict[str, Any]:
    """As tomllib.loads, whose time grows with the square of the parts of a dotted key: more than 200 are refused.

    Raises ValueError and RecursionError.
    """
    if _MANY_PARTS.search(text):
        raise ValueError("a key has more than 200 parts with dots between them")
    return tomllib.loads(text)


class WrongValue(ValueError):
    """what: is wrong at the location. fix: what to write there."""

    def __init__(self, location: Location, what: str, fix: str) -> None:
        self.location, self.what, self.fix = location, shortened(what, _LONGEST), fix
        super().__init__(self.what)


def read_record(kind: Any, value: Any, location: Location = ()) -> Any:
    """A value of this type: a record, an optional, a tuple, a mapping or a plain value. Raises WrongValue."""
    if is_dataclass(cast("object", kind)):
        return _record(kind, _of(dict, value, location), location)
    inner, origin = get_args(kind), get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in inner:
            return None
        single = [each for each in inner if each is not types.NoneType]
        return read_record(single[0], value, location) if len(single) == 1 else _plain(value, location)
    if origin is tuple:
        items = _of(list, value, location)
        return tuple(read_record(inner[0], item, (*location, place)) for place, item in enumerate(items))
    if origin is not None:
        table = _of(dict, value, location)
        return {key: read_record(inner[1], item, (*location, key)) for key, item in table.items()}
    return _single(kind, value, location)


def _record(kind: Any, table: dict[str, Any], location: Location) -> Any:
    hints, known, given = _hints(kind), fields(kind), dict[str, Any]()
    for field in known:
        name, hint = field.name, hints[field.name]
        if name in table:
            given[name] = read_record(hint, table[name], (*location, name))
        elif field.default is MISSING and field.default_factory is MISSING:
            if types.NoneType not in get_args(hint):
                raise WrongValue(location, f'{_titled(location)} lacks "{name}"', f"add {name}")
            given[name] = None
    for key in table:
        if key not in given:
            names = [field.name for field in known]
            raise WrongValue((*location, key), f'"{key}" is not a key of {_titled(location)}', did_you_mean(key, names))
    return kind(**given)


def _single(kind: Any, value: Any, location: Location) -> Any:
    if kind is Preserves:
        return Preserves(_of(int, value, location))
    if kind is float:
        number = value if isinstance(value, float) else _of(int, value, location, "a number")
        if not abs(number) <= sys.float_info.max:
            raise _wrong(value, location, "a finite number")
        return float(number)
    return _of(kind, value, location)


def _plain(value: Any, location: Location) -> Any:
    for item in cast("list[Any]", value) if isinstance(value, list) else [value]:
        if not isinstance(item, _SCALARS):
            what = f'"{location[-1]}" is a {type(item).__name__}'
            raise WrongValue(location, what, "write text, true, false or a number")
        if isinstance(item, float) and not math.isfinite(item):
            raise _wrong(item, location, "a finite number")
        if isinstance(item, int):
            _check_width(item, location)
        if isinstance(item, str) and len(item) > _LONGEST_TEXT:
            what = f'"{location[-1]}" has {len(item):,} characters'
            raise WrongValue(location, what, f"write at most {_LONGEST_TEXT:,}")
    return cast("Any", value)


def _of(kind: type[Any], value: Any, location: Location, expected: str = "") -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        arrays = "an array of tables: one header in double brackets, [[…]], for each"
        raise _wrong(value, location, expected or (arrays if kind is list else _EXPECTED[kind]))
    if isinstance(value, int):
        _check_width(value, location)
    return value


def _check_width(value: int, location: Location) -> None:
    if value.bit_length() > _MOST_BITS:
        what = f"a whole number has {value.bit_length():,} bits"
        raise WrongValue(location, what, f"write one of at most {_MOST_BITS}")


def _wrong(value: Any, location: Location, expected: str) -> WrongValue:
    key = next((each for each in reversed(location) if isinstance(each, str)), "the file")
    return WrongValue(location, f'"{key}" is {shortened(reprlib.repr(value), 60)}', f"write {expected}")


def _titled(location: Location) -> str:
    """The table at a location, as TOML writes it."""
    if not location:
        return "the file"
    name, is_array = (location[-2], True) if isinstance(location[-1], int) else (location[-1], False)
    return f"[[{name}]]" if is_array else f"[{name}]"


@cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)
