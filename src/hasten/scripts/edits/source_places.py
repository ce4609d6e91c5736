"""Where in a source the places of a plan are: calls and loops in its syntax tree, and what is around them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TypeVar

from hasten.doctor.reading.names.scopes import COMPREHENSIONS
from hasten.errors import PlanError
from hasten.facts.scripts.script_places import SourceCall

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Placed = TypeVar("Placed", bound=ast.Call | Loop)


def read_source(text: str) -> ast.Module:
    """Raises PlanError."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise PlanError(f"is not Python: {error}") from error


def call_at(tree: ast.Module, place: SourceCall) -> ast.Call:
    """Raises PlanError where there is none."""
    return _at(tree, place, (ast.Call,), "call")


def loop_at(tree: ast.Module, place: SourceCall) -> Loop:
    """Raises PlanError where there is none."""
    return _at(tree, place, (ast.For, *COMPREHENSIONS), "loop")


def place_of(node: ast.AST, file: str) -> SourceCall:
    """Of an expression or a statement."""
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return SourceCall(
        file=file,
        line=node.lineno,
        column=node.col_offset,
        end_line=node.end_lineno,
        end_column=node.end_col_offset,
    )


def _at(tree: ast.Module, place: SourceCall, kinds: tuple[type[Placed], ...], word: str) -> Placed:
    for node in ast.walk(tree):
        if isinstance(node, kinds) and place_of(node, place.file) == place:
            return node
    raise PlanError(f"has no {word} at line {place.line}: the {word} was not found in the source")


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def free_name(tree: ast.Module, names: Sequence[str]) -> str:
    """The first that the file does not use. Raises PlanError where it uses all."""
    used = names_in(tree)
    for node in ast.walk(tree):
        match node:
            case ast.arg(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                used.add(name)
            case ast.alias(name, other):
                used.add(other or name)
            case _:
                pass
    if (free := next((name for name in names if name not in used), None)) is None:
        raise PlanError(f"uses all of the names {', '.join(names)}")
    return free
