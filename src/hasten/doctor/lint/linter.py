"""Checks source files by rules. Nothing in them is executed."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hasten.doctor.lint.source_files import Source, files_in, read
from hasten.doctor.lint.suppression import Suppressed
from hasten.doctor.reading.source_code import Code
from hasten.doctor.rule import Found, SourceRule
from hasten.doctor.rules import ALL
from hasten.errors import Unreadable
from hasten.facts.finding import Finding

_OF_TRAINING = re.compile(r"torch|lightning|accelerate|transformers|zero_grad")
_TRAINERS = frozenset({"transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """One file. notes: what no rule looks at in it. unreadable: why no rule could check it."""

    path: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    unreadable: Unreadable | None = None


def lint(paths: Iterable[Path], rules: Collection[SourceRule] = ALL) -> Iterator[Checked]:
    """Every file, in order. An unreadable one does not stop the others."""
    files, unreadable = files_in(paths)
    yield from (Checked(path=each.where, unreadable=each) for each in unreadable)
    yield from (check_file(file, rules) for file in files)


def check_file(path: Path, rules: Collection[SourceRule]) -> Checked:
    try:
        source = read(path)
        return Checked(path=str(path), findings=tuple(lint_source(source, rules)), notes=tuple(_notes(source)))
    except Unreadable as error:
        return Checked(path=str(path), unreadable=error)


def _notes(source: Source) -> Iterator[str]:
    """Of the first trainer of Hugging Face that a file makes or derives from."""
    if not re.search(r"\b(transformers|trl)\b.*Trainer", source.text, re.DOTALL):
        return
    names = Code(source.text).names
    used = [*(each.func for each in names.scopes.all(ast.Call))]
    used += [base for each in names.scopes.all(ast.ClassDef) for base in each.bases]
    found = [(node.lineno, name) for node in used if (name := names.qualified(node)) in _TRAINERS]
    if found:
        line, name = min(found)
        settings = "its settings (precision, loader workers, padding, compilation) are not checked"
        what = f"a {name} trains here, and {settings}; a hasten.Job of the same model, loss and data can be tuned"
        yield f"{source.where(line)}: {what}"


def lint_source(source: Source, rules: Collection[SourceRule] = ALL) -> list[Finding]:
    """Sorted by place. Raises Unreadable."""
    trains = _OF_TRAINING.search(source.text)
    found = found_in(source, rules if trains else ())
    lines = source.lines
    findings = dict.fromkeys(_finding(rule, each, source, lines) for rule, each in found)
    return [_placed(each, source) for each in sorted(findings, key=lambda each: (each.line, each.column, each.code))]


def found_in(source: Source, rules: Collection[SourceRule]) -> list[tuple[SourceRule, Found]]:
    """Everything that is not suppressed, rule by rule. Raises Unreadable."""
    try:
        with warnings.catch_warnings(action="ignore"):  # Python's own, about the file
            code = Code(source.text)
    except SyntaxError as error:
        raise Unreadable(f"is not valid Python: {error.msg}", where=source.where(error.lineno or 1)) from error
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte; nested deeper than Python allows
        raise Unreadable(f"cannot be parsed: {error or type(error).__name__}", where=source.path) from error
    suppressed = Suppressed(source.text, code.tree)
    found = [(rule, each) for rule in rules for each in _checked(rule, code, source)]
    return [(rule, each) for rule, each in found if not suppressed(rule.code, each.line)]


def _checked(rule: SourceRule, code: Code, source: Source) -> list[Found]:
    """A rule that fails on one file must not stop the others."""
    try:
        return [*rule.check(code)]
    except Exception as error:
        what = f"{rule.code} fails on it with {type(error).__name__}: {error}"
        raise Unreadable(what, where=source.path, fix=f"please report it; --ignore {rule.code} skips it") from error


def _finding(rule: SourceRule, found: Found, source: Source, lines: Sequence[str]) -> Finding:
    node = found.node
    assert isinstance(node, ast.expr | ast.stmt)
    end_line = node.end_lineno or node.lineno
    return rule.finding(
        found,
        path=source.path,
        line=node.lineno,
        column=_column(lines, node.lineno, node.col_offset),
        end_line=end_line,
        end_column=_column(lines, end_line, node.end_col_offset or node.col_offset),
        safety=rule.safety if found.edits and not source.left_alone else None,
        source=lines[node.lineno - 1].strip(),
    )


def _column(lines: Sequence[str], line: int, offset: int) -> int:
    """offset: in bytes of UTF-8, as Python counts. The column counts characters, from 1."""
    return len(lines[line - 1].encode(errors="surrogatepass")[:offset].decode(errors="replace")) + 1


def _placed(finding: Finding, source: Source) -> Finding:
    """A finding in a notebook, with its cell and the lines in it."""
    if not source.cells:
        return finding
    cell, line = source.place(finding.line)
    shift = finding.line - line
    return replace(finding, cell=cell, line=line, end_line=finding.end_line - shift)
