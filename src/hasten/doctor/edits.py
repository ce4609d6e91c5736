"""Edits of a source file, made by replacing characters: all else of the file stays."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass

LINE_END = re.compile(r"\r\n|\r|\n")
_NO_TOKENS = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER})
_NEED_NO_PARENTHESES = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


@dataclass(frozen=True, slots=True)
class AddArgument:
    """text: such as "pin_memory=True", after the last argument of the call."""

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
    """text: such as ".detach()", after an expression, in parentheses where it needs them."""

    node: ast.expr
    text: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A statement with its line; a `pass` in its place where its block would be empty."""

    statement: ast.stmt


@dataclass(frozen=True, slots=True)
class CutAfter:
    """All of an expression that comes after its first part."""

    node: ast.expr
    part: ast.expr


Edit = CutAfter | AddArgument | RemoveArgument | Replace | Append | Remove


class Unspliceable(Exception):
    """The edit cannot be made in this text without moving more than is meant."""


@dataclass(frozen=True, slots=True)
class Splice:
    """begin, end: characters of the text, from 0."""

    begin: int
    end: int
    text: str

    def touches(self, other: Splice) -> bool:
        return self.begin <= other.end and other.begin <= self.end


def spliced(text: str, splices: Sequence[Splice]) -> str:
    for each in sorted(splices, key=lambda splice: splice.begin, reverse=True):
        text = text[: each.begin] + each.text + text[each.end :]
    return text


def splices_of(edit: Edit, text: str) -> list[Splice]:
    """Raises Unspliceable."""
    where = _Text(text)
    match edit:
        case Replace(node, new):
            return [Splice(*where.span(node), new)]
        case Append(node, new):
            begin, end = where.span(node)
            if isinstance(node, _NEED_NO_PARENTHESES):
                return [Splice(end, end, new)]
            return [Splice(begin, begin, "("), Splice(end, end, f"){new}")]
        case AddArgument(call, new):
            return [_added(where, call, new)]
        case RemoveArgument(call, name):
            return [_removed(where, call, name)]
        case Remove(statement):
            return [_without(where, statement)]
        case CutAfter(node, part):
            (begin, end), (first, last) = where.span(node), where.span(part)
            if begin != first or "#" in where.text[last:end]:
                raise Unspliceable
            return [Splice(last, end, "")]


class _Text:
    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(match.end() for match in LINE_END.finditer(text))]

    def at(self, line: int, offset: int) -> int:
        """The character at an offset in bytes of UTF-8, as Python counts."""
        start = self._starts[line - 1]
        stop = self._starts[line] if line < len(self._starts) else len(self.text)
        return start + len(self.text[start:stop].encode()[:offset].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def line_of(self, begin: int, end: int) -> tuple[int, int] | None:
        """Of the lines of a piece, with their ends, where nothing else stands on them."""
        start = max(self.text.rfind("\n", 0, begin), self.text.rfind("\r", 0, begin)) + 1
        ending = LINE_END.search(self.text, end)
        if ending is None or self.text[start:begin].strip() or self.text[end : ending.start()].strip():
            return None
        return start, ending.end()

    def tokens(self, begin: int, end: int) -> list[tuple[str, int, int]]:
        """Those of a piece: comments and line ends are none. Each with where it begins and ends."""
        piece = self.text[begin:end]
        starts = [0, *(match.end() for match in LINE_END.finditer(piece))]
        found: list[tuple[str, int, int]] = []
        try:
            for token in tokenize.generate_tokens(io.StringIO(piece, newline=None).readline):
                if token.type not in _NO_TOKENS and token.string:
                    first, last = (begin + starts[line - 1] + column for line, column in (token.start, token.end))
                    found.append((token.string, first, last))
        except (tokenize.TokenError, SyntaxError) as error:
            raise Unspliceable from error
        return found


def _added(where: _Text, call: ast.Call, new: str) -> Splice:
    given = [*call.args, *call.keywords]
    if any(isinstance(each, ast.GeneratorExp) for each in call.args):
        raise Unspliceable
    _, behind_function = where.span(call.func)
    _, behind = where.span(call)
    tokens = where.tokens(behind_function, behind)
    if not tokens or tokens[-1][0] != ")":
        raise Unspliceable
    if not given:
        return Splice(tokens[-1][1], tokens[-1][1], new)
    last, _, end = tokens[-2]
    return Splice(end, end, f" {new}," if last == "," else f", {new}")


def _removed(where: _Text, call: ast.Call, name: str) -> Splice:
    """With one comma; with its line where it has one of its own."""
    found = [each for each in call.keywords if each.arg == name]
    if len(found) != 1:
        raise Unspliceable
    begin, end = where.span(found[0])
    _, behind_function = where.span(call.func)
    tokens = where.tokens(behind_function, where.span(call)[1])
    before = next(each for each in reversed(tokens) if each[2] <= begin)
    after = [each for each in tokens if each[1] >= end]
    if after[0][0] == ",":
        line = where.line_of(begin, after[0][2])
        same_line = len(after) > 1 and LINE_END.search(where.text[end : after[1][1]]) is None
        following = after[1][1] if same_line else after[0][2]
        return Splice(*line, "") if line is not None else Splice(begin, following, "")
    if before[0] == "," and not where.text[before[2] : begin].strip():
        return Splice(before[1], end, "")
    return Splice(begin, end, "")


def _without(where: _Text, statement: ast.stmt) -> Splice:
    """Its whole line, where it stands alone on it; else a `pass` stands for it."""
    begin, end = where.span(statement)
    line = where.line_of(begin, end)
    if line is not None and is_python(where.text[: line[0]] + where.text[line[1] :]):
        return Splice(*line, "")
    return Splice(begin, end, "pass")


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
