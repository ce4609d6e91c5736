"""The values of arguments and of constant expressions: through variables, defaults of argparse and of dataclasses,
dictionaries and `**kwargs` that are written out in the file."""

from __future__ import annotations

import ast
from enum import Enum
from functools import cached_property
from operator import add, floordiv, mul, sub, truediv
from typing import Any

from hasten.doctor.reading.names.name_resolution import Names

_DEEPEST = 8
_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv, ast.Div: truediv}
_CHANGE_DICTIONARIES = frozenset({"update", "setdefault", "pop", "popitem", "clear"})


class Unknown(Enum):
    """ABSENT: nothing is given. HIDDEN: something may be given, or its value cannot be seen."""

    ABSENT = "absent"
    HIDDEN = "hidden"


ABSENT, HIDDEN = Unknown.ABSENT, Unknown.HIDDEN


class Values:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._nodes = names.scopes.nodes

    def argument(self, call: ast.Call, name: str, position: int | None = None) -> ast.expr | Unknown:
        """The expression that is given for a parameter. position: from 0, where it may be given without its name."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        if position is not None and not any(isinstance(each, ast.Starred) for each in call.args[: position + 1]):
            if position < len(call.args):
                return call.args[position]
        elif position is not None:
            return HIDDEN
        for keyword in call.keywords:
            if keyword.arg is None:
                entry = self._entry(keyword.value, name)
                if entry is not ABSENT:
                    return entry
        return ABSENT

    def constant_argument(self, call: ast.Call, name: str, position: int | None = None) -> Any:
        """Its value, ABSENT or HIDDEN."""
        given = self.argument(call, name, position)
        return given if isinstance(given, Unknown) else self.constant(given)

    def constant(self, node: ast.AST | None, depth: int = 0) -> Any:
        """The value of an expression, HIDDEN where it is not known. A default of argparse or of a dataclass counts as
        known: it is what the file says."""
        node = self._names.followed(node)
        if depth > _DEEPEST:
            return HIDDEN
        match node:
            case ast.Constant(value):
                return value
            case ast.UnaryOp(ast.USub(), operand):
                value = self.constant(operand, depth + 1)
                return -value if isinstance(value, int | float) else HIDDEN
            case ast.UnaryOp(ast.Not(), operand):
                value = self.constant(operand, depth + 1)
                return HIDDEN if value is HIDDEN else not value
            case ast.BinOp(left, operator, right):
                return _computed(operator, self.constant(left, depth + 1), self.constant(right, depth + 1))
            case ast.Attribute(base, name):
                return self._field(base, name, depth)
            case ast.Subscript(base, ast.Constant(str(name))):
                entry = self._entry(base, name)
                return HIDDEN if isinstance(entry, Unknown) else self.constant(entry, depth + 1)
            case ast.Call(ast.Name("int" | "float" | "bool"), [inner], []):
                return self.constant(inner, depth + 1)
            case _:
                return HIDDEN

    def _entry(self, node: ast.expr, key: str) -> ast.expr | Unknown:
        """Of a dictionary that is written out and changed nowhere."""
        if isinstance(node, ast.Name | ast.Attribute) and self._is_changed(node):
            return HIDDEN
        match self._names.followed(node):
            case ast.Dict(keys, values):
                found: ast.expr | Unknown = ABSENT
                for each, value in zip(keys, values, strict=True):
                    if not isinstance(each, ast.Constant):
                        return HIDDEN
                    if each.value == key:
                        found = value
                return found
            case ast.Call(ast.Name("dict"), [], keywords):
                for each in keywords:
                    if each.arg is None:
                        return HIDDEN
                    if each.arg == key:
                        return each.value
                return ABSENT
            case _:
                return HIDDEN

    def _is_changed(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether an entry may be added to it somewhere in the file."""
        changed: list[ast.expr] = []
        for each in (*self._nodes.get(ast.Subscript, []), *self._nodes.get(ast.Attribute, [])):
            match each:
                case ast.Subscript(base, _, ast.Store() | ast.Del()):
                    changed.append(base)
                case ast.Attribute(base, name) if name in _CHANGE_DICTIONARIES:
                    changed.append(base)
        return ast.unparse(node) in map(ast.unparse, changed)

    def _field(self, base: ast.expr, name: str, depth: int) -> Any:
        """`args.name` of argparse, or a field of a class of the file."""
        owner = self._names.class_named(base) or self._names.class_of(base)
        if owner is not None and not (isinstance(base, ast.Name) and base.id == "self"):
            return self._class_field(owner, base, name, depth)
        return self._option(base, name)

    def _class_field(self, owner: ast.ClassDef, base: ast.expr, name: str, depth: int) -> Any:
        making = self._names.making(base)
        if self._is_assigned(name) or (making is not None and (making.args or making.keywords)):
            return HIDDEN
        for each in owner.body:
            match each:
                case ast.AnnAssign(ast.Name(field), _, ast.expr() as value) if field == name:
                    return self.constant(value, depth + 1)
                case ast.Assign([ast.Name(field)], value) if field == name:
                    return self.constant(value, depth + 1)
        return HIDDEN

    def _is_assigned(self, name: str) -> bool:
        return any(
            isinstance(each, ast.Attribute) and each.attr == name and isinstance(each.ctx, ast.Store)
            for each in self._nodes.get(ast.Attribute, [])
        )

    def _option(self, base: ast.expr, name: str) -> Any:
        """The default of the one `add_argument("--name", …)` of the file."""
        if self._is_assigned(name) or getattr(base, "id", "") not in self._parsed_names:
            return HIDDEN
        options = [each for each in self._nodes.get(ast.Call, []) if _option_of(each) == name]
        if len(options) != 1 or not isinstance(options[0], ast.Call):
            return HIDDEN
        given = {keyword.arg: keyword.value for keyword in options[0].keywords}
        action = given.get("action")
        if "default" in given:
            return self.constant(given["default"])
        if isinstance(action, ast.Constant) and action.value in {"store_true", "store_false"}:
            return action.value == "store_false"
        return HIDDEN

    @cached_property
    def _parsed_names(self) -> set[str]:
        """The names that the file gives to what parse_args() returns."""
        found = set[str]()
        for node in self._nodes.get(ast.Assign, []):
            match node:
                case ast.Assign(targets, ast.Call(ast.Attribute(_, "parse_args" | "parse_known_args"))):
                    for target in targets:
                        found |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
        for node in self._nodes.get(ast.Return, []):
            match node:
                case ast.Return(ast.Call(ast.Attribute(_, "parse_args"))):
                    found |= {"args", "opt", "opts", "options", "hparams", "config", "cfg"}
        return found


def _option_of(call: ast.AST) -> str | None:
    """The attribute that argparse gives an option."""
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") != "add_argument":
        return None
    for keyword in call.keywords:
        if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    flags = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    long = [each for each in flags if each.startswith("--")] or flags
    return long[0].lstrip("-").replace("-", "_") if long else None


def _computed(operator: ast.operator, left: Any, right: Any) -> Any:
    """Of small numbers, as a person writes them."""
    compute = _OPERATORS.get(type(operator))
    if compute is None or not all(isinstance(each, int | float) and abs(each) < 1e12 for each in (left, right)):
        return HIDDEN
    return compute(left, right) if right or compute in {add, sub, mul} else HIDDEN
