"""Lines of a source around its statements: what is inserted before, behind and around them, with their indentation."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence

from hasten.doctor.edits import LINE_END, SourceText, Splice, Unspliceable

Position = tuple[int, int]  # line from 1, and bytes into it
_FSTRING_START = getattr(tokenize, "FSTRING_START", None)  # Python 3.12
_FSTRING_END = getattr(tokenize, "FSTRING_END", None)


class Statements:
    """Of one file."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.text, self.tree = SourceText(text), tree
        ending = LINE_END.search(text)
        self.newline = "\n" if ending is None else ending[0]

    def bodies(self) -> Iterator[list[ast.stmt]]:
        for node in ast.walk(self.tree):
            for name in ("body", "orelse", "finalbody"):
                body = getattr(node, name, None)
                if isinstance(body, list):  # that of a lambda is an expression
                    yield body

    def around(self, node: ast.expr | ast.stmt) -> list[ast.stmt]:
        """The statements that it is in, the innermost last; of a statement, itself is one."""
        place = node.lineno, node.col_offset
        found = [each for body in self.bodies() for each in body if _contains(each, place)]
        return sorted(found, key=first_position)

    # ── what is inserted ────────────────────────────────────────────────────────────────────────────────────────────

    def before(self, statement: ast.stmt, lines: Sequence[str], behind: str = "") -> Splice:
        """Above the comments that belong to it. behind: what comes between."""
        place = self.text.begin_of(self._first_line(statement))
        return Splice(place, place, self._indented(statement, lines) + behind)

    def is_under_a_title(self, statement: ast.stmt) -> bool:
        """Whether comments right above it begin a paragraph."""
        number = self._first_line(statement)
        return number < first_position(statement)[0] and (number == 1 or not self.text.line(number - 1).strip())

    def behind(self, statement: ast.stmt, lines: Sequence[str]) -> Splice:
        place = self.text.begin_of(self._last_line(statement) + 1)
        return Splice(place, place, self._on_new_line(place) + self._indented(statement, lines))

    def decorated(self, function: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> Splice:
        place = self.text.begin_of(function.lineno)
        self._indentation(function.lineno, function.col_offset)
        return Splice(place, place, self._indented(function, [decorator]))

    def wrapped(self, statements: Sequence[ast.stmt], context: str) -> list[Splice]:
        """In `with CONTEXT:`, together with the comments of the first one."""
        first, last = self._first_line(statements[0]), self._last_line(statements[-1])
        step, place, in_strings = self._step(), self.text.begin_of(first), self._lines_in_strings()
        found = [Splice(place, place, self._indented(statements[0], [f"with {context}:"]))]
        for number in range(first, last + 1):
            if self.text.line(number).strip() and number not in in_strings:
                place = self.text.begin_of(number)
                found.append(Splice(place, place, step))
        return found

    def _indented(self, statement: ast.stmt, lines: Sequence[str]) -> str:
        indentation = self._indentation(*first_position(statement))
        return "".join(f"{indentation}{line}{self.newline}" if line else self.newline for line in lines)

    def _on_new_line(self, place: int) -> str:
        """At the end of a text without a last line end, one."""
        return "" if self.text.text[:place].endswith(("\n", "\r")) else self.newline

    # ── where statements lie ────────────────────────────────────────────────────────────────────────────────────────

    def _first_line(self, statement: ast.stmt) -> int:
        """With the comments right above it."""
        number, column = first_position(statement)
        indentation = self._indentation(number, column)
        while number > 1 and self.text.line(number - 1).startswith(f"{indentation}#"):
            number -= 1
        return number

    def _last_line(self, statement: ast.stmt) -> int:
        number = statement.end_lineno or statement.lineno
        rest = self.text.line(number).encode()[statement.end_col_offset :].decode().strip()
        if rest and not rest.startswith("#"):
            raise Unspliceable
        return number

    def _indentation(self, number: int, column: int) -> str:
        before = self.text.line(number).encode()[:column].decode()
        if before.strip():  # another statement is on this line
            raise Unspliceable
        return before

    def _step(self) -> str:
        """What the file indents a block by."""
        first = [first_position(each) for body in self.bodies() for each in body]
        before = [self.text.line(number).encode()[:column].decode() for number, column in first]
        return min((each for each in before if each and not each.strip()), key=len, default="    ")

    def _lines_in_strings(self) -> set[int]:
        """Lines that begin within a string."""
        found, begun = set[int](), list[int]()
        for token in tokenize.generate_tokens(io.StringIO(self.text.text, newline=None).readline):
            if token.type == _FSTRING_START:
                begun.append(token.start[0])
            elif token.type == _FSTRING_END:
                found |= {*range(begun.pop() + 1, token.end[0] + 1)}
            elif token.type == tokenize.STRING:
                found |= {*range(token.start[0] + 1, token.end[0] + 1)}
        return found


def first_position(statement: ast.stmt) -> Position:
    """Of its first decorator where it has one: in front of the @."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    number = min([statement.lineno, *(each.lineno for each in decorators)])
    return number, statement.col_offset


def _contains(statement: ast.stmt, place: Position) -> bool:
    assert statement.end_lineno is not None
    assert statement.end_col_offset is not None
    return first_position(statement) <= place < (statement.end_lineno, statement.end_col_offset)
