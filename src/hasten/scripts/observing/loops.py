"""How many optimizer steps a script will take, by the loops that are running around one of them.

The number of turns of `for epoch in range(args.epochs)` is read from the running function's own variables; that of a
loop over a loader is the loader's length, and that of a loop over the folds of a cross-validation is their number. In
`for phase in ["train", "val"]` the steps are those of one phase, where the loop asks which one it is; a loop over
optimizers updates each of them once. A loop that counts its turns ends at its limit (see counted_loops.py); another
`break` is not seen. Loops around it multiply such a limit where each of their turns begins to count again.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from types import CodeType, FrameType

from torch.optim import Optimizer

from hasten.facts.scripts.seen import Length
from hasten.scripts.observing.counted_loops import Limit, limit_of
from hasten.scripts.observing.later_calls import called_again
from hasten.scripts.observing.read_values import value_of

_RANGES = frozenset({"range", "trange"})
_WRITING = frozenset({"add_scalar", "debug", "flush", "info", "log", "print", "set_postfix", "update", "write"})
_LOGGING = _WRITING | {
    *("append", "ctime", "format", "str", "strftime", "time"),
    *("detach", "exp", "float", "int", "item", "len", "mean", "round", "sum"),
}
_WRAPPERS = frozenset({"tqdm", "track", "enumerate", "reversed"})  # of an iterable, as their first argument


def length_of(
    frames: Iterable[FrameType], batches: int | None, batches_per_update: float, first_turn: int | None = None
) -> Length:
    """frames: of the user's functions that are running in the second update, the innermost first. batches: of one epoch
    of the loader that the steps read, None for a loader without a length; batches_per_update: as observed, 0 without a
    loader. first_turn: turn_of, in the first update.
    """
    frames = list(frames)
    around = list(_loops_of_steps(frames))
    so_far, reads = _Count(turns=1, epochs=1), False
    ahead: tuple[_Count, Limit] | None = None  # at a limit that is not reached yet
    reached: Limit | None = None
    per_turn = _turns_per_update(first_turn, around[0]) if around else 1
    for frame, loop in around:
        if reached is not None and not reached.begins_again(loop, frame):
            continue
        reached = None
        if ahead is not None and ahead[1].begins_again(loop, frame):
            ahead = None
        line = f"{os.path.basename(frame.f_code.co_filename)}:{loop.lineno}"
        count, is_range = (None, False) if isinstance(loop, ast.While) else _turns(loop.iter, frame)
        if (limit := limit_of(loop, frame)) is not None:
            counts_steps = limit.counts_inner_turns or not reads
            each_update = max(round(batches_per_update), per_turn)
            until = so_far.times(limit.turns(each_update) if counts_steps else limit.epochs)
            if limit.counts_inner_turns:
                until = replace(until, turns=limit.turns(each_update))
            ahead = replace(until, epochs=None) if counts_steps else until, limit
        if count is None and ahead is not None:
            (so_far, reached), ahead = ahead, None
            continue
        if isinstance(loop, ast.While):
            return Length(steps=None, epochs=None, why=f"{line} is a while loop without a counted limit")
        begins_epochs = not is_range and not reads and so_far.epochs is not None  # it is the innermost loop over data
        if begins_epochs and not _is_endless(loop.iter, frame):
            count, reads = batches if count is None else count, True
        if count is None:
            return Length(steps=None, epochs=None, why=f"the loop of {line} has no known length")
        so_far = so_far.times(count)
        if begins_epochs:
            so_far = replace(so_far, epochs=1)
        if ahead is not None and ahead[0].turns < so_far.turns:
            (so_far, reached), ahead = ahead, None
    if not around:
        return Length(steps=None, epochs=None, why="there is no loop around the script's steps")
    turns, per_update = so_far.turns, batches_per_update if reads else per_turn
    if not reads and first_turn is not None and len(around) == 1 and reached is None:
        turns -= first_turn // per_turn * per_turn  # of a replay buffer that is filled before the first update
    outermost, loop = around[-1]
    return Length(
        steps=max(math.floor(turns / max(per_update, 1.0)), 1),
        epochs=so_far.epochs if reads else None,
        interrupted=_is_interrupted(around[0][1]),
        again=called_again(frames, outermost, loop.lineno),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Count:
    """Of the turns of all loops from the innermost on, and of the epochs; None where they have none."""

    turns: int
    epochs: int | None

    def times(self, turns: int) -> _Count:
        return _Count(turns=self.turns * turns, epochs=None if self.epochs is None else self.epochs * turns)


def _is_interrupted(loop: ast.For | ast.While) -> bool:
    """Whether it has `if step % 100 == 0:` with a call that does more than to print and log."""
    for branch in ast.walk(loop):
        if isinstance(branch, ast.If) and any(isinstance(each, ast.Mod) for each in ast.walk(branch.test)):
            called = [node.func for each in branch.body for node in ast.walk(each) if isinstance(node, ast.Call)]
            names = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called}
            if names - _LOGGING:
                return True
    return False


def _loops_of_steps(frames: Iterable[FrameType]) -> Iterator[tuple[FrameType, ast.For | ast.While]]:
    """Without those of which one turn of all updates the optimizer: over phases, and `for each in optimizers` unless it
    is around all other loops."""
    loops = [(frame, each) for frame, each in _loops(frames) if not _is_over_phases(each)]
    around_others = loops[-1] if len(loops) > 1 else None
    return (each for each in loops if each is around_others or not _is_over_optimizers(*each))


def _is_over_optimizers(frame: FrameType, loop: ast.For | ast.While) -> bool:
    targets = [loop.target] if isinstance(loop, ast.For) else []
    names = (part for each in targets for part in ast.walk(each) if isinstance(part, ast.Name))
    return any(isinstance(value_of(each, frame), Optimizer) for each in names)


def _is_over_phases(loop: ast.For | ast.While) -> bool:
    match loop:
        case ast.For(ast.Name(phase), ast.List(phases) | ast.Tuple(phases)):
            words = all(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in phases)
            asked = (each.left for node in loop.body for each in ast.walk(node) if isinstance(each, ast.Compare))
            return words and any(isinstance(each, ast.Name) and each.id == phase for each in asked)
        case _:
            return False


def turn_of(frames: Iterable[FrameType]) -> int | None:
    """The number of the running turn of the innermost loop; None where it is not counted."""
    found = next(_loops_of_steps(frames), None)
    return None if found is None else _turn(*found)


def _turn(frame: FrameType, loop: ast.For | ast.While) -> int | None:
    if isinstance(loop, ast.While) or _turns(loop.iter, frame)[0] is None:
        limit = limit_of(loop, frame)
        return None if limit is None else limit.now
    match loop.target, loop.iter:
        case ast.Name(), ast.Call(ast.Name("range"), arguments):
            now = value_of(loop.target, frame)
            try:
                turns = range(*(value_of(each, frame) for each in arguments))
                return turns.index(now) if isinstance(now, int) else None  # `_` can be given any value within the loop
            except (TypeError, ValueError):
                return None
        case ast.Tuple([ast.Name() as number, _]), ast.Call(ast.Name("enumerate"), [_]):
            found = value_of(number, frame)
            return found if isinstance(found, int) else None
        case _:
            return None


def _turns_per_update(first: int | None, innermost: tuple[FrameType, ast.For | ast.While]) -> int:
    """Of the innermost loop: as many as gradients are accumulated over."""
    frame, loop = innermost
    second = _turn(frame, loop)
    if first is None or second is None:
        return 1
    if second == first and isinstance(loop, ast.For):  # an update in one turn of all
        return _turns(loop.iter, frame)[0] or 1
    return max(second - first, 1)


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
        case ast.Call(ast.Name(name) | ast.Attribute(_, name), [_, *_] as arguments) if name in _RANGES:
            try:
                return len(range(*(value_of(each, frame) for each in arguments))), True
            except (TypeError, ValueError):  # an end that is not known
                return None, True
        case ast.Call(ast.Name("islice") | ast.Attribute(_, "islice"), [first, stop]):
            most, whole = value_of(stop, frame), _turns(first, frame)[0]
            return (min(most, most if whole is None else whole) if isinstance(most, int) else None), False
        case ast.List(each) | ast.Tuple(each):
            return len(each), False
        case ast.Call(ast.Name("zip"), [_, *_] as parts):
            known = [count for count, _ in (_turns(each, frame) for each in parts) if count is not None]
            return min(known, default=None), False
        case ast.Call(ast.Attribute(table, "items" | "keys" | "values"), []):
            found = value_of(table, frame)
            return (len(found) if isinstance(found, dict) else None), False
        case ast.Call(ast.Attribute(splitter, "split")):  # of a cross-validation of scikit-learn's
            folds = getattr(value_of(splitter, frame), "n_splits", None)
            return (folds if isinstance(folds, int) else None), False
        case _:
            try:
                return len(value_of(iterable, frame)), False
            except Exception:  # an object without a length, or whose length is the user's code
                return None, False


def _is_endless(iterable: ast.expr, frame: FrameType) -> bool:
    """Whether it is a cycle, or a generator of the user's with `while True` that nothing in it leaves."""
    match iterable:
        case ast.Call(ast.Name(name) | ast.Attribute(_, name), [first, *_]) if name in _WRAPPERS:
            return _is_endless(first, frame)
        case ast.Call(function):
            made = value_of(function, frame)
        case _:
            made = value_of(iterable, frame)
    if made is itertools.cycle or isinstance(made, itertools.cycle):
        return True
    code = getattr(made, "gi_code", None) or getattr(made, "__code__", None)
    if not isinstance(code, CodeType) or not code.co_flags & inspect.CO_GENERATOR:
        return False
    last = max(line or 0 for *_, line in code.co_lines())
    loops = (each for each in _loops_of(code.co_filename) if code.co_firstlineno <= each.lineno <= last)
    return any(map(_is_never_left, loops))


def _is_never_left(loop: ast.For | ast.While) -> bool:
    is_always = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and bool(loop.test.value)
    return is_always and not any(isinstance(each, ast.Break | ast.Return) for each in ast.walk(loop))
