"""Comments that silence findings: `# hasten: ignore` all of a line, `# hasten: ignore[H205, H3]` those of these codes.

A comment on the first or last line of a statement counts for all of it. One that names codes without brackets, or
something else than codes in them, silences nothing.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from hasten.doctor.lint.source_files import Source, read
from hasten.doctor.reading.names.scopes import begin, end
from hasten.doctor.reading.source_code import Code
from hasten.errors import Unreadable
from hasten.facts.finding import Finding

_COMMENT = re.compile(r"#\s*hasten:\s*ignore(?!\w)([^#]*)")
_IN_BRACKETS = re.compile(r"[\s:]*\[([^\]]*)\](?!\w)")
_CODE = re.compile(r"H\d*", re.IGNORECASE)
_NAMES_A_CODE = re.compile(r"^[\s:]*\[|\bH\d", re.IGNORECASE)
_COMPOUND = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match,
             ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)  # fmt: skip


class Suppressed:
    """In one file: call it with a code and the node of a finding."""

    def __init__(self, source: Source, code: Code) -> None:
        self._source, self._code = source, code

    def __call__(self, code: str, node: ast.AST) -> bool:
        return self._is_on(code, self._lines_about(node))

    def on_line(self, code: str, line: int) -> bool:
        """A finding about a line of a running job."""
        statements = (node for node in ast.walk(self._code.tree) if isinstance(node, ast.stmt) and _spans(node, line))
        around = [node for node in statements if not isinstance(node, _COMPOUND)]
        return self._is_on(code, {line}.union(*map(self._lines_about, around)))

    def _is_on(self, code: str, lines: set[int]) -> bool:
        return any(code.startswith(self._lines.get(number, ())) for number in lines)

    def _lines_about(self, node: ast.AST) -> set[int]:
        """The lines on which a comment about it may be."""
        statement = node if isinstance(node, ast.stmt) else self._code.names.enclosing(node, ast.stmt)
        ends = [node] if statement is None or isinstance(statement, _COMPOUND) else [node, statement]
        return {place(each)[0] for each in ends for place in (begin, end)}

    @cached_property
    def _lines(self) -> dict[int, tuple[str, ...]]:
        """Beginnings of codes, by line."""
        return {line: _codes(text) or () for line, text in _comments(self._source.text)}


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Each line with a comment, and the text after `ignore`."""
    if "hasten:" not in text:
        return
    with suppress(tokenize.TokenError, SyntaxError):  # Python has parsed the text; its own tokenizer refuses more
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if found is not None:
                yield token.start[0], found.group(1)


def not_silenced(findings: Sequence[Finding]) -> list[Finding]:
    """Findings of a job's profile that no comment silences. In a file that cannot be read, none is silenced."""
    files = {path: _suppressed_in(Path(path)) for path in {each.path for each in findings} if path}
    return [each for each in findings if not ((file := files.get(each.path)) and file.on_line(each.code, each.line))]


def _suppressed_in(path: Path) -> Suppressed | None:
    try:
        source = read(path)
        with warnings.catch_warnings(action="ignore"):  # Python's own, about the file
            return Suppressed(source, Code(source.text))
    except (Unreadable, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _spans(node: ast.stmt, line: int) -> bool:
    return begin(node)[0] <= line <= end(node)[0]


def _codes(text: str) -> tuple[str, ...] | None:
    """("",) for all of them, None where they are not understood."""
    brackets = _IN_BRACKETS.match(text)
    if brackets is None:
        return None if _NAMES_A_CODE.search(text) else ("",)
    words = brackets.group(1).replace(",", " ").split()
    return tuple(map(str.upper, words)) if words and all(map(_CODE.fullmatch, words)) else None
