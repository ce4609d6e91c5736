"""Checks source files by rules. Nothing of them is executed."""

from __future__ import annotations

import ast
import re
import signal
import sys
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from hasten.doctor.lint.source_files import Source, files_in, read
from hasten.doctor.lint.suppression import Suppressed, not_understood
from hasten.doctor.reading.source_code import Code
from hasten.doctor.rule import Found, SourceRule
from hasten.doctor.rules import ALL
from hasten.errors import Unreadable
from hasten.facts.finding import Finding
from hasten.facts.machine import usable_cores

_OF_TRAINING = re.compile(r"torch|lightning|accelerate|transformers|zero_grad")
_WORTH_PROCESSES = 1 << 20  # bytes: two seconds of one core; to start a second takes a tenth of one
_IN_A_PIECE = 16  # files


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """Of one file. notes: on comments that silence nothing. unreadable: why no rule could check it."""

    path: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    unreadable: Unreadable | None = None


def lint(paths: Iterable[Path], rules: Collection[SourceRule] = ALL) -> Iterator[Checked]:
    """Every file, in order; on all cores where there is much to read. An unreadable one stops nothing."""
    files, unreadable = files_in(paths)
    yield from (Checked(path=each.where, unreadable=each) for each in unreadable)
    check = partial(check_file, codes=frozenset(rule.code for rule in rules))
    workers = min(usable_cores(), len(files))
    # A process that has threads must not be forked, and a spawned one would run the program's own main file again.
    alone = threading.active_count() > 1 or sys.platform != "linux"
    if alone or workers < 2 or sum(map(_bytes_of, files)) < _WORTH_PROCESSES:
        yield from map(check, files)
        return
    with ProcessPoolExecutor(workers, get_context("fork"), _leave_interrupts) as pool:
        yield from pool.map(check, files, chunksize=min(_IN_A_PIECE, len(files) // workers + 1))


def check_file(path: Path, codes: Collection[str]) -> Checked:
    """With the rules of these codes."""
    try:
        source = read(path)
        found = tuple(lint_source(source, [rule for rule in ALL if rule.code in codes]))
        return Checked(path=str(path), findings=found, notes=tuple(not_understood(source)))
    except Unreadable as error:
        return Checked(path=str(path), unreadable=error)


def lint_text(text: str, path: str, rules: Collection[SourceRule] = ALL) -> list[Finding]:
    """path: it is named by. Raises Unreadable."""
    return lint_source(Source(path, text), rules)


def lint_source(source: Source, rules: Collection[SourceRule] = ALL) -> list[Finding]:
    """Raises Unreadable."""
    if not _OF_TRAINING.search(source.text):
        checked_syntax(source)
        return []
    found = dict.fromkeys(_finding(rule, each, source) for rule, each in found_in(source, rules))
    return [_placed(each, source) for each in sorted(found, key=lambda each: (each.line, each.column, each.code))]


def found_in(source: Source, rules: Collection[SourceRule]) -> list[tuple[SourceRule, Found]]:
    """What is not suppressed, rule by rule. Raises Unreadable."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of Python, about the file
            code = Code(source.text)
    except SyntaxError as error:
        raise not_python(error, source) from error
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte; nested deeper than Python goes
        raise Unreadable(f"cannot be parsed: {error or type(error).__name__}", where=source.path) from error
    suppressed = Suppressed(source, code)
    return [
        (rule, each) for rule in rules for each in _checked(rule, code, source) if not suppressed(rule.code, each.node)
    ]


def _checked(rule: SourceRule, code: Code, source: Source) -> list[Found]:
    """A rule that fails on one file must not stop the others."""
    try:
        return [*rule.check(code)]
    except Exception as error:
        what = f"{rule.code} fails on it with {type(error).__name__}: {error}"
        raise Unreadable(what, where=source.path, fix=f"please report it; --ignore {rule.code} skips it") from error


def checked_syntax(source: Source) -> None:
    """Raises Unreadable for what is not Python."""
    found_in(source, ())


def not_python(error: SyntaxError, source: Source) -> Unreadable:
    return Unreadable(f"is not Python: {error.msg}", where=source.where(error.lineno or 1))


def _finding(rule: SourceRule, found: Found, source: Source) -> Finding:
    node = found.node
    assert isinstance(node, ast.expr | ast.stmt)
    lines = source.lines
    end_line = node.end_lineno or node.lineno
    return Finding(
        code=rule.code,
        rule=rule.name,
        path=source.path,
        line=node.lineno,
        column=_column(lines, node.lineno, node.col_offset),
        end_line=end_line,
        end_column=_column(lines, end_line, node.end_col_offset or node.col_offset),
        severity=rule.severity,
        message=found.message,
        fix=found.fix or rule.fix,
        safety=rule.safety if found.edits and not source.left_alone else None,
        technique=rule.technique,
        source=lines[node.lineno - 1].strip(),
    )


def _column(lines: Sequence[str], line: int, offset: int) -> int:
    """offset: in bytes of UTF-8, as Python counts. The column counts characters, from 1."""
    return len(lines[line - 1].encode(errors="surrogatepass")[:offset].decode(errors="replace")) + 1


def _placed(finding: Finding, source: Source) -> Finding:
    """In its cell, where the source is a notebook."""
    if not source.cells:
        return finding
    cell, line = source.place(finding.line)
    shift = finding.line - line
    return replace(finding, cell=cell, line=line, end_line=finding.end_line - shift)


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # reported when it is read
        return 0


def _leave_interrupts() -> None:
    """To the process that waits for this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
