"""What an expression of a running function's is now, read without calling anything of the user's."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from torch import Size, Tensor

_SAFE: Mapping[str, Any] = {"int": int, "len": len, "range": range, "max": max, "min": min, "round": round}
_OF_MATH: Mapping[str, Callable[..., Any]] = {"ceil": math.ceil, "floor": math.floor}
_OF_TENSORS = frozenset({"size", "numel", "dim"})
_OPERATORS: Mapping[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def value_of(node: ast.expr, frame: FrameType) -> Any:
    """None for an expression that could do more than read, as one that calls a function of the user's; and for one that
    fails now, as a sum with such a part."""
    try:
        return _read(node, frame)
    except Exception:  # of whatever objects the user's names are
        return None


def _read(node: ast.expr, frame: FrameType) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return frame.f_locals.get(name, frame.f_globals.get(name, _SAFE.get(name)))
        case ast.Attribute(owner, name):
            return getattr(_read(owner, frame), name, None)
        case ast.Subscript(owner, ast.Constant(key)):
            owned: Any = _read(owner, frame)
            return owned[key] if type(owned) in (dict, list, tuple, Size) else None
        case ast.BinOp(left, how, right) if type(how) in _OPERATORS:
            return _OPERATORS[type(how)](_read(left, frame), _read(right, frame))
        case ast.Call(called, arguments, []):
            function = _safe(called, frame)
            return None if function is None else function(*(_read(each, frame) for each in arguments))
        case _:
            return None


def _safe(called: ast.expr, frame: FrameType) -> Callable[..., Any] | None:
    match called:
        case ast.Name(name):
            return _SAFE.get(name)
        case ast.Attribute(ast.Name("math" | "np" | "numpy"), name):
            return _OF_MATH.get(name)
        case ast.Attribute(owner, name) if name in _OF_TENSORS:
            tensor = _read(owner, frame)
            return getattr(tensor, name) if isinstance(tensor, Tensor) else None
        case _:
            return None
