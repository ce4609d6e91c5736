"""How many turns a loop without an end of its own makes that counts them up to a limit, as in

    while step < args.max_steps:                for batch in endless(loader):
        ...                                         ...
        step += 1                                   iter_num += 1
                                                    if iter_num > max_iters:
                                                        break

Where the counter grows in a loop within, it counts the turns of that loop. It can be the loop's own, as of `enumerate`
and `itertools.count`. It can grow by more than one, as in `first += batch_size`, where every turn adds the same.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from hasten.scripts.observing.read_values import value_of


@dataclass(frozen=True, slots=True)
class Limit:
    """counter: as its function writes it; now, end: how often it has grown in this turn, and where the loop ends.
    is_of_loop: as of `enumerate`. counts_inner_turns: of a loop within, all together."""

    counter: str
    function: FrameType
    now: int
    end: int
    is_of_loop: bool
    counts_inner_turns: bool

    def turns(self, each_update: int) -> int:
        """From the start of the script on. each_update: what is counted from one to the next; the second is running."""
        resumed = self.now > 2 * each_update  # or filled a replay buffer first
        return self.end - (self.now - each_update if resumed else 0)

    @property
    def epochs(self) -> int:
        """Where it counts epochs, of which the first one is running."""
        return self.end - (0 if self.is_of_loop else self.now)

    def begins_again(self, loop: ast.For | ast.While, function: FrameType) -> bool:
        """In every turn of a loop around this one."""
        code = self.function.f_code
        arguments = code.co_argcount + code.co_kwonlyargcount
        if self.is_of_loop or (function is not self.function and self.counter in code.co_varnames[arguments:]):
            return True
        return any(_is_set_by(each, self.counter) for each in _statements(loop.body))


def _sets(loop: ast.For | ast.While, counter: str) -> bool:
    return any(_is_set_by(node, counter) for statement in loop.body for node in ast.walk(statement))


def _is_set_by(node: ast.AST, counter: str) -> bool:
    """To something that does not depend on what it was."""
    if not isinstance(node, ast.Assign) or _names([node.value], counter):
        return False
    targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
    return any(ast.unparse(each) == counter for each in targets)


def _names(expressions: Sequence[ast.expr], counter: str) -> bool:
    parts = (part for each in expressions for part in ast.walk(each))
    return any(isinstance(part, ast.expr) and ast.unparse(part) == counter for part in parts)


def limit_of(loop: ast.For | ast.While, frame: FrameType) -> Limit | None:
    """None where nothing is counted, or the limit is not known. Read in one of the first two turns. What the loop sets
    back in some turns, as the epochs without an improvement, has no limit that its turns reach."""
    for counter, more, bound in _comparisons(loop, frame):
        name = ast.unparse(counter)
        growth = None if _sets(loop, name) else _growth_in(loop, name, frame.f_lineno)
        by = None if growth is None else _fixed_value(growth.by, loop, frame)
        last, now = value_of(bound, frame), value_of(counter, frame)
        if growth is None or by is None or not isinstance(last, int) or not isinstance(now, int):
            continue
        if now < last + more:
            of_loop = isinstance(loop, ast.For) and _names([loop.target], name)
            end = math.ceil((last + more) / by)
            return Limit(name, frame, now // by, end, of_loop, growth.is_of_inner_loop)
    return None


def _fixed_value(by: ast.expr, loop: ast.For | ast.While, frame: FrameType) -> int | None:
    """None for what a turn of the loop can change, and for what is no positive number."""
    read = {ast.unparse(each) for each in ast.walk(by) if isinstance(each, ast.Name | ast.Attribute)}
    stored = (each for each in ast.walk(loop) if isinstance(each, ast.Name | ast.Attribute))
    if any(isinstance(each.ctx, ast.Store) and ast.unparse(each) in read for each in stored):
        return None
    value = value_of(by, frame)
    return value if isinstance(value, int) and value > 0 else None


_ORDERS: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.NotEq: operator.ne,
}


def _comparisons(loop: ast.For | ast.While, frame: FrameType) -> Iterator[tuple[ast.expr, int, ast.expr]]:
    """Counter, how many turns there are beyond the bound, and the bound."""
    for test in _each_is_needed(loop.test) if isinstance(loop, ast.While) else ():
        match test:
            case ast.Compare(counter, [ast.Lt()], [bound]):
                yield counter, 0, bound
            case ast.Compare(counter, [ast.LtE()], [bound]):
                yield counter, 1, bound
            case _:
                pass
    for branch in _statements(loop.body):
        if not isinstance(branch, ast.If) or not any(isinstance(each, ast.Break | ast.Return) for each in branch.body):
            continue
        for test in _each_is_enough(branch.test, frame):
            match test:
                case ast.Compare(counter, [ast.GtE() | ast.Eq()], [bound]):
                    yield counter, 0, bound
                case ast.Compare(counter, [ast.Gt()], [bound]):
                    yield counter, 1, bound
                case _:
                    pass


def _each_is_needed(test: ast.expr) -> Sequence[ast.expr]:
    """Of `a and b`."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _each_is_enough(test: ast.expr, frame: FrameType) -> Sequence[ast.expr]:
    """Of `a or b`, and of `a and b` where one is the case now."""
    match test:
        case ast.BoolOp(ast.Or(), parts):
            return parts
        case ast.BoolOp(ast.And(), parts):
            left = [each for each in parts if not _holds(each, frame)]
            return left if len(left) == 1 else []
        case _:
            return [test]


def _holds(test: ast.expr, frame: FrameType) -> bool:
    match test:
        case ast.Compare(value, [ast.IsNot()], [ast.Constant(None)]):
            return value_of(value, frame) is not None
        case ast.Compare(left, [how], [right]) if type(how) in _ORDERS:
            one, other = value_of(left, frame), value_of(right, frame)
            return isinstance(one, int | float) and isinstance(other, int | float) and _ORDERS[type(how)](one, other)
        case ast.Name() | ast.Attribute() | ast.Constant():
            found = value_of(test, frame)
            return isinstance(found, bool | int | float | str) and bool(found)
        case _:
            return False


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that every turn reaches, in blocks of `with` and `try` too."""
    for each in body:
        yield each
        if isinstance(each, ast.With | ast.Try):
            yield from _statements(each.body)


@dataclass(frozen=True, slots=True)
class _Growth:
    by: ast.expr
    is_of_inner_loop: bool


_ONE = ast.Constant(1)


def _growth_in(loop: ast.For | ast.While, counter: str, line: int) -> _Growth | None:
    """By the statement that adds to the counter, of the loop, or of one within it that is around the line; None where
    none does."""
    match loop:
        case ast.For(ast.Tuple([number, _]), ast.Call(ast.Name("enumerate"))) if ast.unparse(number) == counter:
            return _Growth(_ONE, False)
        case ast.For(number, ast.Call(ast.Name("count") | ast.Attribute(_, "count"))) if ast.unparse(number) == counter:
            return _Growth(_ONE, False)
        case _:
            pass
    for each in _statements(loop.body):
        match each:
            case ast.AugAssign(target, ast.Add(), by) if ast.unparse(target) == counter:
                return _Growth(by, False)
            case ast.Assign([target], ast.BinOp(before, ast.Add(), by)) if (
                ast.unparse(target) == ast.unparse(before) == counter
            ):
                return _Growth(by, False)
            case ast.For(lineno=first, end_lineno=last) | ast.While(lineno=first, end_lineno=last) if (
                first <= line <= (last or first) and (inner := _growth_in(each, counter, line)) is not None
            ):
                return _Growth(inner.by, True)
            case _:
                pass
    return None
