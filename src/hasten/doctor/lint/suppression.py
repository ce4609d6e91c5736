"""Comments that silence findings: `# hasten: ignore` all of a line, `# hasten: ignore[H205, H3]` those of these codes.

A comment on the first or last line of a plain statement counts for all of it. One that names codes without brackets, or
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
from pathlib import Path

from hasten.doctor.lint.source_files import read
from hasten.doctor.reading.names.scopes import begin, end
from hasten.errors import Unreadable
from hasten.facts.finding import Finding

_COMMENT = re.compile(r"#\s*hasten:\s*ignore(?!\w)([^#]*)")
_IN_BRACKETS = re.compile(r"[\s:]*\[([^\]]*)\](?!\w)")
_CODE = re.compile(r"H\d*", re.IGNORECASE)
_NAMES_A_CODE = re.compile(r"^[\s:]*\[|\bH\d", re.IGNORECASE)
_COMPOUND = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match,
             ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)  # fmt: skip


class Suppressed:
    """In one file: call it with a code and the line of a finding. tree: of the text."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self._codes = dict(_comments(text))
        self._plain = [
            each for each in ast.walk(tree) if isinstance(each, ast.stmt) and not isinstance(each, _COMPOUND)
        ]

    def __call__(self, code: str, line: int) -> bool:
        around = [each for each in self._plain if begin(each)[0] <= line <= end(each)[0]] if self._codes else []
        lines = {line, *(place(each)[0] for each in around for place in (begin, end))}
        return any(code.startswith(self._codes.get(number, ())) for number in lines)


def _comments(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Each line with a comment, and the beginnings of the codes that it silences."""
    if "hasten:" not in text:
        return
    with suppress(tokenize.TokenError, SyntaxError):  # Python has parsed the text; its own tokenizer refuses more
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if found is not None:
                yield token.start[0], _codes(found.group(1))


def _codes(text: str) -> tuple[str, ...]:
    """("",) for all of them, () where they are not understood."""
    brackets = _IN_BRACKETS.match(text)
    if brackets is None:
        return () if _NAMES_A_CODE.search(text) else ("",)
    words = brackets.group(1).replace(",", " ").split()
    return tuple(map(str.upper, words)) if all(map(_CODE.fullmatch, words)) else ()


def not_silenced(findings: Sequence[Finding]) -> list[Finding]:
    """Findings of a job's profile that no comment silences. In a file that cannot be read, none is silenced."""
    files = {path: _suppressed_in(Path(path)) for path in {each.path for each in findings} if path}
    return [each for each in findings if not ((file := files.get(each.path)) and file(each.code, each.line))]


def _suppressed_in(path: Path) -> Suppressed | None:
    try:
        text = read(path).text
        with warnings.catch_warnings(action="ignore"):  # Python's own, about the file
            return Suppressed(text, ast.parse(text))
    except (Unreadable, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
