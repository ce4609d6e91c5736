"""Comments that silence findings: `# hasten: ignore` all of a line, `# hasten: ignore[H205, H3]` those of these codes.

One counts for the whole of a statement that it stands on the first or on the last line of, as linters have it. In a
text it says nothing, and one with a word that is no code, or with a bracket that is not closed, silences nothing.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from hasten.doctor.reading.code import Code
from hasten.doctor.reading.scopes import begin, end
from hasten.doctor.sources import Source, read
from hasten.errors import Unreadable
from hasten.facts.finding import Finding

_SAID = re.compile(r"#\s*hasten:\s*ignore(?!\w)(?:(\s*\[[^\]]*\])(?!\w)|(?!\s*\[))")
_CODES = re.compile(r"H\d*(\s*,\s*H\d*)*")
_COMPOUND = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match,
             ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)  # fmt: skip


class Suppressed:
    """Of one file: call it with a code and where it was found."""

    def __init__(self, source: Source, code: Code) -> None:
        self._source, self._code = source, code

    def __call__(self, code: str, node: ast.AST) -> bool:
        return any(code.startswith(self._lines.get(number, ())) for number in self._places(node))

    def on_line(self, code: str, line: int) -> bool:
        """The same of what a line was found to do when it ran."""
        around = [node for node in ast.walk(self._code.tree) if isinstance(node, ast.stmt) and _spans(node, line)]
        places = {line}.union(*(self._places(node) for node in around if not isinstance(node, _COMPOUND)))
        return any(code.startswith(self._lines.get(number, ())) for number in places)

    def _places(self, node: ast.AST) -> set[int]:
        """The lines on which a comment about it may stand."""
        statement = node if isinstance(node, ast.stmt) else self._code.names.enclosing(node, ast.stmt)
        found = {begin(node)[0], end(node)[0]}
        if statement is not None and not isinstance(statement, _COMPOUND):
            found |= {begin(statement)[0], end(statement)[0]}
        return found

    @cached_property
    def _lines(self) -> dict[int, tuple[str, ...]]:
        """Beginnings of codes, by line."""
        if "hasten:" not in self._source.text:
            return {}
        found: dict[int, tuple[str, ...]] = {}
        try:
            for token in tokenize.generate_tokens(io.StringIO(self._source.text, newline=None).readline):
                said = _SAID.search(token.string) if token.type == tokenize.COMMENT else None
                if said is not None:
                    found[token.start[0]] = _codes(said.group(1))
        except (tokenize.TokenError, SyntaxError):  # Python has parsed it, its own tokenizer gives up sooner
            return found
        return found


def not_silenced(findings: Sequence[Finding]) -> list[Finding]:
    """Of a job that was looked at. A file that cannot be read silences nothing."""
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


def _codes(brackets: str | None) -> tuple[str, ...]:
    """("",) for all of them."""
    if brackets is None:
        return ("",)
    inside = brackets.strip()[1:-1].strip().upper()
    return tuple(re.split(r"\s*,\s*", inside)) if _CODES.fullmatch(inside) else ()
