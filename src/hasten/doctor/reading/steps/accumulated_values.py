"""What a training step adds to something that outlives it, such as a sum or a list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Kind
from hasten.doctor.reading.names.value_origins import returns
from hasten.doctor.reading.objects.optimizer_roles import name_of
from hasten.doctor.reading.steps.training_steps import Ran, Step, Training


@dataclass(frozen=True, slots=True, eq=False)
class Accumulated:
    """total: what it is added to. value: what is added. is_sum: by arithmetic, and not as an element of a list."""

    total: ast.expr
    value: ast.expr
    is_sum: bool


class AccumulatedValues:
    def __init__(self, names: Names, training: Training) -> None:
        self._names, self._training = names, training

    def of_step(self, step: Step) -> Iterator[Accumulated]:
        """What it adds with gradients to what was there before it, and what no backward() is called on."""
        # Where only the loop around it updates the model, that is the step.
        is_part = not step.updates and step.epochs
        reset = _reset_by(self._training.run(step.epochs[0]) if is_part else step.ran)
        for ran in step.ran:
            for found in added(ran.node):
                if ast.unparse(found.total) in reset or _changed(found.total) & self._differentiated:
                    continue
                if not self._training.is_without_gradients(ran.around) and self._outlives(found.total, reset):
                    yield found

    def _outlives(self, total: ast.expr, reset: set[str]) -> bool:
        """Whether it surely exists before the step: what a function is given may be made for each call."""
        base = total
        while isinstance(base, ast.Subscript | ast.Attribute):
            base = base.value
        if not isinstance(base, ast.Name) or base.id in reset or self._names.made_by(total) == "collections.deque":
            return False
        if base.id == "self" and base is not total:
            return True
        bindings = [each for each in self._names.bindings(base) if each.kind is not Kind.AUGMENTED]
        for each in bindings:
            is_parameter = each.kind is Kind.PARAMETER
            given = self._names.given_to(each.node) if is_parameter else each.source
            if given is None or (is_parameter and ast.unparse(given) in reset):
                return False
            if is_parameter and isinstance(given, ast.Name) and not self._outlives(given, reset):
                return False
        return bool(bindings)

    @cached_property
    def _differentiated(self) -> set[str]:
        """Names and attributes that backward() is called on, and those that their values are computed from. Names are
        taken as one in the whole file."""
        comes_from: dict[str, set[str]] = {}
        for target, source in self._flows():
            for each in _changed(target):
                comes_from.setdefault(each, set()).update(self._read_in(source))
        found = set[str]()
        waiting = [each for call in self._training.backwards for each in self._read_in(call)]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += comes_from.get(name, ())
        return found

    def _flows(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each target in the file, with what flows into it."""
        kinds = (ast.Assign, ast.AugAssign, ast.For, ast.arg, ast.Call)
        for each in (node for kind in kinds for node in self._names.scopes.all(kind)):
            match each:
                case ast.Assign(targets, value):
                    yield from (pair for target in targets for pair in self._assigned(target, value))
                case ast.AugAssign(target, _, value) | ast.For(target, value):
                    yield target, value
                case ast.arg():
                    yield from ((each, given) for given in self._names.seen_given_to(each))
                case ast.Call(ast.Attribute(base, "append" | "extend" | "insert"), [*_, value]):
                    yield base, value

    def _assigned(self, target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Part by part, where both are written out, or where a function of the file returns as many."""
        function = self._names.function(value) if isinstance(value, ast.Call) else None
        for each in returns(function) if function is not None else [value]:
            targets, parts = _parts(target), _parts(each)
            yield from zip(targets, parts, strict=True) if len(targets) == len(parts) else [(target, each)]

    def _read_in(self, source: ast.AST) -> set[str]:
        """The names and attributes that it is computed from; for a function of the file, those that it returns."""
        found, waiting, seen = set[str](), [source], set[ast.AST]()
        while waiting:
            node = waiting.pop()
            function = self._names.function(node) if isinstance(node, ast.Call) else None
            if function is None:
                found |= {name_of(node)} if isinstance(node, ast.Name | ast.Attribute) else set()
                waiting += ast.iter_child_nodes(node)
            elif function not in seen:
                seen.add(function)
                waiting += returns(function)
        return found


def _changed(target: ast.AST) -> set[str]:
    """The names that an assignment changes: of `self.rows[i]`, rows."""
    match target:
        case ast.Starred(base):
            return _changed(base)
        case ast.Tuple(parts) | ast.List(parts):
            return set[str]().union(*map(_changed, parts))
        case ast.arg(name):
            return {name}
        case _:
            return {name_of(target)}


def added(node: ast.AST) -> Iterator[Accumulated]:
    match node:
        case ast.AugAssign(total, ast.Add(), value):
            yield from _elements(total, value)
        case ast.Assign([total], ast.BinOp(left, ast.Add(), right)):
            if _contains(left, total) is not _contains(right, total):
                yield from _elements(total, right if _contains(left, total) else left)
        case ast.Call(ast.Attribute(total, "append" | "extend"), [value], []):
            yield from (Accumulated(total, each.value, False) for each in _elements(total, value))


def _elements(total: ast.expr, value: ast.expr) -> list[Accumulated]:
    """One for each part of a tuple, list or dictionary that is written out."""
    match value:
        case ast.Tuple(parts) | ast.List(parts) | ast.Dict(_, parts):
            return [Accumulated(total, each, False) for each in parts]
        case _:
            return [Accumulated(total, value, True)]


def _contains(node: ast.expr, total: ast.expr) -> bool:
    """Itself, or weighted by a factor: `0.9 * average`."""
    match node:
        case ast.BinOp(left, ast.Mult() | ast.Div(), right):
            return ast.unparse(total) in {ast.unparse(left), ast.unparse(right)}
        case _:
            return ast.unparse(total) == ast.unparse(node)


def _reset_by(ran: list[Ran]) -> set[str]:
    """What a turn assigns without reading it, or clears."""
    found = set[str]()
    for each in ran:
        match each.node:
            case ast.Assign(targets, value):
                read = {ast.unparse(part) for part in ast.walk(value) if isinstance(part, ast.expr)}
                found |= {ast.unparse(part) for target in targets for part in _parts(target)} - read
            case ast.For(target):
                found |= {*map(ast.unparse, _parts(target))}
            case ast.Call(ast.Attribute(base, "clear" | "pop" | "popleft")):
                found.add(ast.unparse(base))
            case ast.Delete(targets):
                bases = [target.value if isinstance(target, ast.Subscript) else target for target in targets]
                found |= {*map(ast.unparse, bases)}
    return found


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
