"""How many optimizer steps a script will take, by the loops that are running around one of them.

The number of turns of `for epoch in range(args.epochs)` is read from the running function's own variables; that of a
loop over a loader is the loader's length. A `break` in a loop is not seen.
"""

from __future__ import annotations

import ast
import linecache
import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import FrameType
from typing import Any

from hasten.facts.scripts.seen import Length

_RANGES = frozenset({"range", "trange"})
_WRAPPERS = frozenset({"tqdm", "track", "enumerate", "reversed"})  # of an iterable, as their first argument
_SAFE: Mapping[str, Any] = {"int": int, "len": len, "range": range, "max": max, "min": min}
_OPERATORS: Mapping[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def length_of(frames: Iterable[FrameType], batches: int | None, batches_per_update: float) -> Length:
    """frames: of the user's functions that are running in an update, the innermost first. batches: of one epoch of the
    loader that the steps read, None for a loader without a length; batches_per_update: as observed, 0 without a loader.
    """
    turns, epochs, reads = 1, 1, False
    for frame, loop in _loops(frames):
        line = f"{os.path.basename(frame.f_code.co_filename)}:{loop.lineno}"
        if isinstance(loop, ast.While):
            return Length(steps=None, epochs=None, why=f"{line} is a while loop")
        count, is_range = _turns(loop.iter, frame)
        if not is_range and not reads:
            count, reads = batches if count is None else count, True
        if count is None:
            return Length(steps=None, epochs=None, why=f"the loop of {line} has no known length")
        turns *= count
        if is_range and reads:
            epochs *= count
    if turns == 1 and not reads:
        return Length(steps=None, epochs=None, why="there is no loop around the script's steps")
    steps = math.floor(turns / max(batches_per_update, 1.0)) if reads else turns
    return Length(steps=max(steps, 1), epochs=epochs if reads else None)


def _loops(frames: Iterable[FrameType]) -> Iterator[tuple[FrameType, ast.For | ast.While]]:
    """Around the running lines, the innermost first."""
    for frame in frames:
        code = frame.f_code
        found = [
            loop
            for loop in _loops_of(code.co_filename)
            if loop.body[0].lineno <= frame.f_lineno <= (loop.end_lineno or 0)
            and loop.lineno >= code.co_firstlineno
            and frame.f_lineno < _behind_body(loop)
        ]
        inner = _functions_within(code.co_filename, code.co_firstlineno, frame.f_lineno)
        yield from ((frame, loop) for loop in reversed(found) if not any(loop.lineno < each for each in inner))


def _behind_body(loop: ast.For | ast.While) -> int:
    return (loop.body[-1].end_lineno or loop.body[-1].lineno) + 1


def _functions_within(path: str, first: int, line: int) -> list[int]:
    """The first lines of functions around a line, which the running function, that begins at `first`, is or is in. A
    loop before such a line is not the running function's own."""
    around = [
        node.lineno
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return [each for each in around if each >= first]


@cache
def _tree(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


@cache
def _loops_of(path: str) -> tuple[ast.For | ast.While, ...]:
    """From the outermost to the innermost, as they begin."""
    found = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.For | ast.While)]
    return tuple(sorted(found, key=lambda loop: loop.lineno))


def _turns(iterable: ast.expr, frame: FrameType) -> tuple[int | None, bool]:
    """How many, None where that is not known; and whether it is a range."""
    match iterable:
        case ast.Call(ast.Name(name) | ast.Attribute(_, name), [first, *_]) if name in _WRAPPERS:
            return _turns(first, frame)
        case ast.Call(ast.Name(name), [_, *_] as arguments) if name in _RANGES:
            try:
                return len(range(*(_value(each, frame) for each in arguments))), True
            except (TypeError, ValueError):  # an end that is not known
                return None, True
        case _:
            try:
                return len(_value(iterable, frame)), False
            except Exception:  # an object without a length, or whose length is the user's code
                return None, False


def _value(node: ast.expr, frame: FrameType) -> Any:
    """None for an expression that could do more than read: one that calls a function of the user's."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return frame.f_locals.get(name, frame.f_globals.get(name, _SAFE.get(name)))
        case ast.Attribute(owner, name):
            return getattr(_value(owner, frame), name, None)
        case ast.Subscript(owner, ast.Constant(key)):
            owned: Any = _value(owner, frame)
            return owned[key] if type(owned) in (dict, list, tuple) else None
        case ast.BinOp(left, how, right) if type(how) in _OPERATORS:
            return _OPERATORS[type(how)](_value(left, frame), _value(right, frame))
        case ast.Call(ast.Name(name), arguments, []) if name in _SAFE:
            return _SAFE[name](*(_value(each, frame) for each in arguments))
        case _:
            return None
