"""All that an expression may be in some run of a file: through assignments, calls, returns, attributes, and entries of
tuples, lists and dictionaries that are written out.

Names.value says what a name surely is, or nothing. Here, where an expression cannot be followed further, it is the
answer itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Binding, Function, Kind, iterated

_ANY = object()  # any entry
_MOST = 400  # expressions on the way from one
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_PREPARE = frozenset({"prepare", "prepare_data_loader", "setup_dataloaders"})  # of Accelerate and of Fabric


class Origin(NamedTuple):
    """entries: that are taken of it, such as (0,) for the first of a tuple that an unknown function returns."""

    node: ast.expr
    entries: tuple[object, ...] = ()


class Origins:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._known: dict[ast.AST, list[Origin]] = {}

    def of(self, node: ast.expr) -> list[Origin]:
        """All, without those that are None."""
        if node not in self._known:
            self._known[node] = [each for each in self._walk(node) if not is_none(each.node)]
        return self._known[node]

    def calls(self, node: ast.expr) -> list[ast.Call]:
        """Those of them that are calls, whole."""
        return [each.node for each in self.of(node) if isinstance(each.node, ast.Call) and not each.entries]

    def makers(self, node: ast.expr) -> list[str]:
        """The full name of what makes each of them; "" where that is not known."""
        return [self._names.qualified(getattr(each.node, "func", None)) or "" for each in self.of(node)]

    def _walk(self, start: ast.expr) -> Iterator[Origin]:
        waiting, seen = [Origin(start)], set[Origin]()
        while waiting and len(seen) < _MOST:
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            before = self._before(here)
            if before:
                waiting += before
            else:
                yield here

    def _before(self, here: Origin) -> list[Origin]:
        """What it was made from one assignment, call or entry before; none where it begins."""
        node, entries = here
        match node:
            case ast.Name():
                return self._bound(self._names.bindings(node), here)
            case ast.Attribute(base, name):
                bindings = self._names.attribute(self._names.class_of(base), name)
                return self._bound([each for each in bindings if not is_none(each.source)], here)
            case ast.Subscript(base, index):
                return [Origin(base, (_entry(index), *entries))]
            case ast.IfExp(_, body, orelse):
                return [Origin(body, entries), Origin(orelse, entries)]
            case ast.Starred(value):
                return [Origin(value, entries)]
            case ast.Call():
                return self._called(node, here)
            case _:
                return _taken(here)

    def _bound(self, bindings: list[Binding], here: Origin) -> list[Origin]:
        found = list[Origin]()
        for each in bindings:
            if each.kind in {Kind.VALUE, Kind.ENTERED} and each.source is not None:
                found.append(Origin(each.source, here.entries))
            elif each.kind is Kind.PART and each.source is not None:
                entry = _ANY if each.number is None else each.number
                found.append(Origin(each.source, (entry, *here.entries)))
            elif each.kind is Kind.PARAMETER and (given := self._names.seen_given_to(each.node)):
                found += [Origin(value, here.entries) for value in given]
            else:
                return []
        return found

    def _called(self, call: ast.Call, here: Origin) -> list[Origin]:
        function = self._names.function(call)
        if function is not None:
            return [Origin(each, here.entries) for each in returns(function)]
        if iterated(call) is not call:
            return [Origin(iterated(call), here.entries)]
        if isinstance(call.func, ast.Attribute) and call.func.attr in _PREPARE and call.args:
            if here.entries and isinstance(here.entries[0], int) and here.entries[0] < len(call.args):
                return [Origin(call.args[here.entries[0]], here.entries[1:])]
            return [Origin(call.args[0], here.entries)] if len(call.args) == 1 else []
        return []


def returns(function: Function) -> list[ast.expr]:
    """What it returns, without functions in it."""
    return [each.value for each in _own(function) if isinstance(each, ast.Return) and each.value is not None]


def _own(function: Function) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, _FUNCTIONS):
            waiting += ast.iter_child_nodes(node)


def _taken(here: Origin) -> list[Origin]:
    """The entry of a display that is written out; none where no entry is taken, or where it has no such one."""
    if not here.entries:
        return []
    entry, *rest = here.entries
    match here.node:
        case ast.Tuple(values) | ast.List(values):
            known: dict[object, ast.expr] = dict(enumerate(values))
            known |= {number - len(values): each for number, each in known.items() if isinstance(number, int)}
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            known = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
        case ast.DictComp(_, value) | ast.ListComp(value) | ast.GeneratorExp(value):
            return [Origin(value, tuple(rest))]
        case _:
            return []
    chosen = [known[entry]] if entry in known else dict.fromkeys(known.values()) if entry is _ANY else []
    return [Origin(each, tuple(rest)) for each in chosen]


def _entry(index: ast.expr) -> object:
    match index:
        case ast.Constant(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int(value))):
            return -value
        case _:
            return _ANY


def is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def contents(node: ast.AST, names: Names) -> Iterator[ast.AST]:
    """All that it consists of, and the functions of this file that it calls."""
    waiting, seen = [node], {node}
    while waiting:
        for each in ast.walk(waiting.pop()):
            yield each
            called = names.function(each) if isinstance(each, ast.Call) else None
            if called is not None and called not in seen:
                seen.add(called)
                waiting.append(called)
