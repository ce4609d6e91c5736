"""Changes of a source file that leave all but their own place as it is: comments, line ends and formatting stay."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AddArgument:
    """text: such as "pin_memory=True", behind the last argument of the call."""

    call: ast.Call
    text: str


@dataclass(frozen=True, slots=True)
class RemoveArgument:
    """One that is given by its name."""

    call: ast.Call
    name: str


@dataclass(frozen=True, slots=True)
class Replace:
    """The text of an expression by another."""

    node: ast.expr
    text: str


@dataclass(frozen=True, slots=True)
class Append:
    """text: such as ".detach()", behind an expression; put in parentheses where it needs them."""

    node: ast.expr
    text: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A statement with its line; a `pass` in its place where its block would be empty."""

    statement: ast.stmt


@dataclass(frozen=True, slots=True)
class CutBehind:
    """What an expression does to a part of it: all that stands behind the part."""

    node: ast.expr
    part: ast.expr


Edit = CutBehind | AddArgument | RemoveArgument | Replace | Append | Remove
