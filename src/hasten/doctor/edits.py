"""Edits of a source file. They replace characters, so that comments, line ends and formatting stay."""

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
    """text: such as "pin_memory=True", added after the last argument of the call."""

    call: ast.Call
    text: str


@dataclass(frozen=True, slots=True)
class Replace:
    """The text of an expression, or of a named argument."""

    node: ast.expr | ast.keyword
    text: str


@dataclass(frozen=True, slots=True)
class Append:
    """text: such as ".detach()", after an expression, which gets parentheses where it needs them."""

    node: ast.expr
    text: str


@dataclass(frozen=True, slots=True)
class Enclose:
    """An expression in a call of a function: `x` becomes `float(x)`."""

    node: ast.expr
    function: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A statement and its line. It becomes `pass` where its block would be empty, or where its line has more on it."""

    statement: ast.stmt


@dataclass(frozen=True, slots=True)
class CutAfter:
    """The rest of an expression after its first part."""

    node: ast.expr
    part: ast.expr


Edit = CutAfter | AddArgument | Replace | Append | Enclose | Remove


class Unspliceable(Exception):
    """The edit would change more of this text than it should."""


@dataclass(frozen=True, slots=True)
class Splice:
    """begin, end: characters of the text, from 0."""

    begin: int
    end: int
    text: str

    def touches(self, other: Splice) -> bool:
        return self.begin <= other.end and other.begin <= self.end


def spliced(text: str, splices: Sequence[Splice]) -> str:
    """Of several insertions at one place, the first one's text comes first."""
    parts, place = list[str](), 0
    for each in sorted(splices, key=lambda splice: (splice.begin, splice.end)):
        parts += [text[place : each.begin], each.text]
        place = each.end
    return "".join([*parts, text[place:]])


def splices_of(edit: Edit, text: str) -> list[Splice]:
    """Raises Unspliceable."""
    where = SourceText(text)
    match edit:
        case Replace(node, new):
            return [Splice(*where.span(node), new)]
        case Append(node, new):
            begin, end = where.span(node)
            if isinstance(node, _NEED_NO_PARENTHESES):
                return [Splice(end, end, new)]
            return [Splice(begin, begin, "("), Splice(end, end, f"){new}")]
        case Enclose(node, function):
            begin, end = where.span(node)
            if isinstance(node, ast.Name) and text[begin:end] != node.id:  # in some f-strings before Python 3.12
                raise Unspliceable
            return [Splice(begin, begin, f"{function}("), Splice(end, end, ")")]
        case AddArgument(call, new):
            return [_added(where, call, new)]
        case Remove(statement):
            return [_without(where, statement)]
        case CutAfter(node, part):
            (begin, end), (first, last) = where.span(node), where.span(part)
            if begin != first or "#" in where.text[last:end]:
                raise Unspliceable
            return [Splice(last, end, "")]


class SourceText:
    """Places in a text: by line and bytes of UTF-8, as Python counts them, and by character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(match.end() for match in LINE_END.finditer(text))]

    def begin_of(self, line: int) -> int:
        """The first character of a line; behind the last line, the end of the text."""
        return self._starts[line - 1] if line <= len(self._starts) else len(self.text)

    def line(self, number: int) -> str:
        """With its line end."""
        return self.text[self.begin_of(number) : self.begin_of(number + 1)]

    def at(self, line: int, offset: int) -> int:
        """The character at an offset in bytes of UTF-8, as Python counts."""
        return self.begin_of(line) + len(self.line(line).encode()[:offset].decode())

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def tokens(self, begin: int, end: int) -> list[tuple[str, int, int]]:
        """Each token between two characters, without comments and line ends, with its own begin and end."""
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


def _added(where: SourceText, call: ast.Call, new: str) -> Splice:
    if any(isinstance(each, ast.GeneratorExp) for each in call.args):
        raise Unspliceable
    _, behind_function = where.span(call.func)
    _, behind = where.span(call)
    tokens = where.tokens(behind_function, behind)
    if not tokens or tokens[-1][0] != ")":
        raise Unspliceable
    if not call.args and not call.keywords:
        return Splice(tokens[-1][1], tokens[-1][1], new)
    last, _, end = tokens[-2]
    return Splice(end, end, f" {new}," if last == "," else f", {new}")


def _without(where: SourceText, statement: ast.stmt) -> Splice:
    begin, end = where.span(statement)
    start = max(where.text.rfind("\n", 0, begin), where.text.rfind("\r", 0, begin)) + 1
    ending = LINE_END.search(where.text, end)
    if ending is not None and not where.text[start:begin].strip() and not where.text[end : ending.start()].strip():
        shorter = where.text[:start] + where.text[ending.end() :]
        if is_python(shorter):
            return Splice(start, ending.end(), "")
    return Splice(begin, end, "pass")


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
