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

    def argument(self, call: ast.Call, name: str, position: int | None = None) -> ast.expr | Unknown:
        """The expression that is given for a parameter. position: from 0, where it may be given without its name."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        if position is not None:
            if any(isinstance(each, ast.Starred) for each in call.args[: position + 1]):
                return HIDDEN
            if position < len(call.args):
                return call.args[position]
        entries = [self._entry(each.value, name) for each in call.keywords if each.arg is None]
        return next((each for each in entries if each is not ABSENT), ABSENT)

    def expression(self, call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
        """The expression that is given for a parameter; None where none is given or visible."""
        given = self.argument(call, name, position)
        return None if isinstance(given, Unknown) else given

    def constant_argument(self, call: ast.Call, name: str, position: int | None = None) -> Any:
        """Its value, ABSENT or HIDDEN."""
        given = self.argument(call, name, position)
        return given if isinstance(given, Unknown) else self.constant(given)

    def constant(self, node: ast.AST | None, depth: int = 0) -> Any:
        """The value of an expression, HIDDEN where it is not known. A default of argparse or of a dataclass counts as
        known: it is what the file says."""
        if depth > _DEEPEST:
            return HIDDEN
        match self._names.followed(node):
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
        """An entry of a dictionary that is written out and changed nowhere."""
        match self._names.followed(node):
            case ast.Dict(keys, values) if all(isinstance(each, ast.Constant) for each in keys):
                pairs = [(each.value, value) for each, value in zip(keys, values, strict=True)]  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
            case ast.Call(ast.Name("dict"), [], keywords) if all(each.arg is not None for each in keywords):
                pairs = [(each.arg, each.value) for each in keywords]
            case _:
                return HIDDEN
        return HIDDEN if ast.unparse(node) in self._changed else dict(pairs).get(key, ABSENT)

    @cached_property
    def _changed(self) -> set[str]:
        """Everything in the file to which an entry may be added, in the words of the file."""
        subscripts = [each for each in self._names.scopes.all(ast.Subscript) if not isinstance(each.ctx, ast.Load)]
        methods = [each for each in self._names.scopes.all(ast.Attribute) if each.attr in _CHANGE_DICTIONARIES]
        return {ast.unparse(each.value) for each in (*subscripts, *methods)}

    def _field(self, base: ast.expr, name: str, depth: int) -> Any:
        """`args.name` of argparse, or a field of a class of the file."""
        if name in self._assigned:
            return HIDDEN
        owner = self._names.class_named(base) or self._names.class_of(base)
        if owner is None or (isinstance(base, ast.Name) and base.id == "self"):
            return self._option(base, name)
        making = self._names.making(base)
        if making is not None and (making.args or making.keywords):
            return HIDDEN
        for each in owner.body:
            match each:
                case ast.AnnAssign(ast.Name(field), _, ast.expr() as value) if field == name:
                    return self.constant(value, depth + 1)
                case ast.Assign([ast.Name(field)], value) if field == name:
                    return self.constant(value, depth + 1)
        return HIDDEN

    @cached_property
    def _assigned(self) -> set[str]:
        """Attributes that the file sets, on whatever object."""
        return {each.attr for each in self._names.scopes.all(ast.Attribute) if isinstance(each.ctx, ast.Store)}

    def _option(self, base: ast.expr, name: str) -> Any:
        """The default of the one `add_argument("--name", …)` of the file."""
        options = self._options.get(name, []) if getattr(base, "id", "") in self._parsed_names else []
        if len(options) != 1:
            return HIDDEN
        default = self.constant_argument(options[0], "default")
        action = self.constant_argument(options[0], "action")
        if default is ABSENT and action in {"store_true", "store_false"}:
            return action == "store_false"
        return HIDDEN if default is ABSENT else default

    @cached_property
    def _options(self) -> dict[str, list[ast.Call]]:
        """Calls of `add_argument`, by the attribute that argparse gives each option."""
        found: dict[str, list[ast.Call]] = {}
        for call in self._names.scopes.all(ast.Call):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                flags = [each.value for each in call.args if isinstance(each, ast.Constant)]
                named = [each.value.value for each in call.keywords
                         if each.arg == "dest" and isinstance(each.value, ast.Constant)]  # fmt: skip
                long = named or [each for each in flags if str(each).startswith("--")] or flags
                if long:
                    found.setdefault(str(long[0]).lstrip("-").replace("-", "_"), []).append(call)
        return found

    @cached_property
    def _parsed_names(self) -> set[str]:
        """The names that the file gives to what parse_args() returns."""
        found = set[str]()
        for node in self._names.scopes.all(ast.Assign):
            match node:
                case ast.Assign(targets, ast.Call(ast.Attribute(_, "parse_args" | "parse_known_args"))):
                    parts = [each for target in targets for each in ast.walk(target)]
                    found |= {each.id for each in parts if isinstance(each, ast.Name)}
        for node in self._names.scopes.all(ast.Return):
            match node:
                case ast.Return(ast.Call(ast.Attribute(_, "parse_args"))):
                    found |= {"args", "opt", "opts", "options", "hparams", "config", "cfg"}
        return found


def _computed(operator: ast.operator, left: Any, right: Any) -> Any:
    """For small numbers, as a person writes them."""
    compute = _OPERATORS.get(type(operator))
    if compute is None or not all(isinstance(each, int | float) and abs(each) < 1e12 for each in (left, right)):
        return HIDDEN
    return compute(left, right) if right or compute in {add, sub, mul} else HIDDEN
