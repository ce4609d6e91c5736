"""Comments that silence findings: `# hasten: ignore` all of a line, `# hasten: ignore[H205, H3]` those of these codes.

One on the first or last line of a statement counts for all of it. Codes may also be written without brackets: a comment
that names one never silences all. One whose codes are not understood silences nothing, and is reported.
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
_PLAIN = re.compile(r"(?:[^\w\[]*[A-Za-z]+\d\w*)+")  # words with digits, as codes are
_CODE = re.compile(r"H\d*", re.IGNORECASE)
_NAMES_A_CODE = re.compile(r"^[\s:]*\[|\bH\d", re.IGNORECASE)
_COMPOUND = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match,
             ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)  # fmt: skip


class Suppressed:
    """Of one file: call it with a code and where it was found."""

    def __init__(self, source: Source, code: Code) -> None:
        self._source, self._code = source, code

    def __call__(self, code: str, node: ast.AST) -> bool:
        return any(code.startswith(self._lines.get(number, ())) for number in self._lines_about(node))

    def on_line(self, code: str, line: int) -> bool:
        """Of a finding about a line of a running job."""
        around = [node for node in ast.walk(self._code.tree) if isinstance(node, ast.stmt) and _spans(node, line)]
        places = {line}.union(*(self._lines_about(node) for node in around if not isinstance(node, _COMPOUND)))
        return any(code.startswith(self._lines.get(number, ())) for number in places)

    def _lines_about(self, node: ast.AST) -> set[int]:
        """The lines on which a comment about it may be."""
        statement = node if isinstance(node, ast.stmt) else self._code.names.enclosing(node, ast.stmt)
        found = {begin(node)[0], end(node)[0]}
        if statement is not None and not isinstance(statement, _COMPOUND):
            found |= {begin(statement)[0], end(statement)[0]}
        return found

    @cached_property
    def _lines(self) -> dict[int, tuple[str, ...]]:
        """Beginnings of codes, by line."""
        return {line: _codes(text) or () for line, text in _comments(self._source.text)}


def not_understood(source: Source) -> list[str]:
    """A message for each comment that was meant to silence something and does not."""
    return [
        f"{source.where(line)}: this comment silences nothing: write # hasten: ignore[H205, H3]"
        for line, text in _comments(source.text)
        if _codes(text) is None
    ]


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Line, and what follows `ignore`."""
    if "hasten:" not in text:
        return
    with suppress(tokenize.TokenError, SyntaxError):  # Python has parsed it, its own tokenizer gives up sooner
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if found is not None:
                yield token.start[0], found.group(1)


def not_silenced(findings: Sequence[Finding]) -> list[Finding]:
    """Of a job's profile. A file that cannot be read silences nothing."""
    files: dict[str, Suppressed | None] = {"": None}
    for each in findings:
        if each.path not in files:
            files[each.path] = _suppressed_in(Path(each.path))
    return [each for each in findings if not ((file := files[each.path]) and file.on_line(each.code, each.line))]


def _suppressed_in(path: Path) -> Suppressed | None:
    try:
        source = read(path)
        with warnings.catch_warnings(action="ignore"):  # of Python, about the file
            return Suppressed(source, Code(source.text))
    except (Unreadable, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _spans(node: ast.stmt, line: int) -> bool:
    return begin(node)[0] <= line <= end(node)[0]


def _codes(text: str) -> tuple[str, ...] | None:
    """("",) for all of them, None where they are not understood."""
    if brackets := _IN_BRACKETS.match(text):
        words = brackets.group(1).replace(",", " ").split()
    elif plain := _PLAIN.match(text):
        words = re.findall(r"\w+", plain.group())
    else:
        return None if _NAMES_A_CODE.search(text) else ("",)
    return tuple(map(str.upper, words)) if words and all(map(_CODE.fullmatch, words)) else None
