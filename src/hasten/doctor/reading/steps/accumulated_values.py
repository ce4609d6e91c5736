"""What a training step adds to something that outlives it, such as a sum or a list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Kind
from hasten.doctor.reading.names.value_origins import Origins, returns
from hasten.doctor.reading.steps.training_steps import Ran, Step, Training

_DISPLAYS = (ast.List, ast.Tuple)
Key = tuple[ast.AST | None, str]  # a name with its scope; an attribute, of whatever object


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """total: what it is added to. value: what is added. is_sum: by arithmetic, and not as an element of a list."""

    total: ast.expr
    value: ast.expr
    is_sum: bool


class KeptValues:
    """Of one file."""

    def __init__(self, names: Names, training: Training) -> None:
        self._names, self._training, self._origins = names, training, Origins(names)

    def of_step(self, step: Step) -> Iterator[Kept]:
        """What it adds with gradients to what was there before it, and what no backward() is called on."""
        begun = self._begun_in(step)
        for ran in step.ran:
            for kept in added(ran.node):
                if _said(kept.total) in begun or self._is_differentiated(kept.total):
                    continue
                if not self._training.is_without_gradients(ran.around) and self._outlives(kept.total, begun):
                    yield kept

    def _begun_in(self, step: Step) -> set[str]:
        """What a step begins anew. Where the loop around it updates the model, that is the step: it is one of several
        parts of a batch."""
        whole = step.ran
        if not step.updates and step.epochs:
            whole = list(self._training.run(step.epochs[0].body))
        return _begun_by(whole)

    def _outlives(self, total: ast.expr, begun: set[str]) -> bool:
        """Whether it is surely older than the step: what a function is given may be made for it each time."""
        base = total
        while isinstance(base, ast.Subscript | ast.Attribute):
            base = base.value
        if not isinstance(base, ast.Name) or base.id in begun:
            return False
        if base.id == "self" and base is not total:
            return not self._is_bounded(total)
        bindings = [each for each in self._names.bindings(base) if each.kind is not Kind.AUGMENTED]
        for each in bindings:
            given = self._names.given_to(each.node) if each.kind is Kind.PARAMETER else each.source
            if given is None or (each.kind is Kind.PARAMETER and _said(given) in begun):
                return False
            if each.kind is Kind.PARAMETER and isinstance(given, ast.Name) and not self._outlives(given, begun):
                return False
        return bool(bindings) and not self._is_bounded(total)

    def _is_bounded(self, total: ast.expr) -> bool:
        """A deque of limited length."""
        making = self._names.making(total)
        return making is not None and self._names.qualified(making.func) == "collections.deque"

    def _is_differentiated(self, total: ast.expr) -> bool:
        return not self._differentiated.isdisjoint(self._targets_in(total))

    @cached_property
    def _differentiated(self) -> set[Key]:
        """What backward() is called on, and what that is computed from."""
        comes_from: dict[Key, set[Key]] = {}
        for targets, source in self._flows():
            for target in targets:
                comes_from.setdefault(target, set()).update(self._read_in(source))
        found = set[Key]()
        waiting = [key for call in self._training.backwards for key in self._read_in(call)]
        while waiting:
            key = waiting.pop()
            if key not in found:
                found.add(key)
                waiting += comes_from.get(key, ())
        return found

    def _flows(self) -> Iterator[tuple[list[Key], ast.AST]]:
        nodes = self._names.scopes.nodes
        for each in (*nodes.get(ast.Assign, []), *nodes.get(ast.AugAssign, []), *nodes.get(ast.For, [])):
            match each:
                case ast.Assign(targets, value):
                    for target in targets:
                        yield from self._assigned(target, value)
                case ast.AugAssign(target, _, value) | ast.For(target, value):
                    yield self._targets_in(target), value
        for each in nodes.get(ast.arg, []):
            for given in self._names.seen_given_to(each):
                yield [self._key(each, each.arg)], given  # pyright: ignore[reportAttributeAccessIssue]
        for each in nodes.get(ast.Call, []):
            match each:
                case ast.Call(ast.Attribute(base, "append" | "extend" | "insert"), [*_, value]):
                    yield self._targets_in(base), value

    def _assigned(self, target: ast.expr, value: ast.expr) -> Iterator[tuple[list[Key], ast.AST]]:
        """Part by part, where both are written out, or a function of the file returns as many."""
        function = self._names.function(value) if isinstance(value, ast.Call) else None
        for each in returns(function) if function is not None else [value]:
            parts = each.elts if isinstance(each, ast.Tuple) else []
            if isinstance(target, ast.Tuple) and len(parts) == len(target.elts):
                yield from ((self._targets_in(name), part) for name, part in zip(target.elts, parts, strict=True))
            else:
                yield self._targets_in(target), each

    def _read_in(self, source: ast.AST) -> set[Key]:
        """The names and attributes that it is computed from: of a function of the file, what that returns."""
        found, waiting, seen = set[Key](), [source], set[ast.AST]()
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Name):
                found.add(self._key(node, node.id))
            elif isinstance(node, ast.Attribute):
                found.add((None, node.attr))
            function = self._names.function(node) if isinstance(node, ast.Call) else None
            if function is None:
                waiting += ast.iter_child_nodes(node)
            elif function not in seen:
                seen.add(function)
                waiting += returns(function)
        return found

    def _key(self, node: ast.AST, name: str) -> Key:
        """A name of the same scope is the same, wherever it stands."""
        scope = self._names.scopes.of(node)
        while name not in scope.bindings and scope.parent is not None:
            scope = scope.outer.get(name, scope.parent)
        return scope.node, name

    def _targets_in(self, target: ast.expr) -> list[Key]:
        match target:
            case ast.Name(name):
                return [self._key(target, name)]
            case ast.Attribute(_, name):
                return [(None, name)]
            case ast.Subscript(base) | ast.Starred(base):
                return self._targets_in(base)
            case ast.Tuple(parts) | ast.List(parts):
                return [key for each in parts for key in self._targets_in(each)]
            case _:
                return []


def added(node: ast.AST) -> Iterator[Kept]:
    match node:
        case ast.AugAssign(total, ast.Add(), value):
            yield from _kept(total, value, isinstance(value, _DISPLAYS))
        case ast.Assign([total], ast.BinOp(left, ast.Add(), right)):
            if _contains(left, total) and not _contains(right, total):
                yield from _kept(total, right, isinstance(right, _DISPLAYS))
            elif _contains(right, total) and not _contains(left, total):
                yield from _kept(total, left, isinstance(left, _DISPLAYS))
        case ast.Call(ast.Attribute(total, "append" | "extend"), [value], []):
            yield from _kept(total, value, True)


def _kept(total: ast.expr, value: ast.expr, is_element: bool) -> Iterator[Kept]:
    """Each part of what is written out as a tuple, list or dictionary."""
    match value:
        case ast.Tuple(parts) | ast.List(parts) | ast.Dict(_, parts):
            yield from (Kept(total, each, False) for each in parts)
        case _:
            yield Kept(total, value, not is_element)


def _contains(node: ast.expr, total: ast.expr) -> bool:
    """Itself, or weighted by a factor: `0.9 * average`."""
    said = _said(total)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        return said in {_said(node.left), _said(node.right)}
    return _said(node) == said


def _begun_by(ran: list[Ran]) -> set[str]:
    """What a turn, or some turns, begin anew."""
    found = set[str]()
    for each in ran:
        match each:
            case Ran(ast.Assign(targets, value)):
                read = {_said(part) for part in ast.walk(value) if isinstance(part, ast.expr)}
                found |= {_said(part) for target in targets for part in _parts(target)} - read
            case Ran(ast.AnnAssign(target, _, ast.expr())):
                found.add(_said(target))
            case Ran(ast.For(target, _)):
                found |= {_said(part) for part in _parts(target)}
            case Ran(ast.Call(ast.Attribute(base, "clear" | "pop" | "popleft"))):
                found.add(_said(base))
            case Ran(ast.Delete(targets)):
                found |= {_said(target.value if isinstance(target, ast.Subscript) else target) for target in targets}
    return found


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _said(node: ast.AST) -> str:
    return ast.unparse(node)
