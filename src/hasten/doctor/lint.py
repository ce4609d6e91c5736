"""Source files, looked at by rules. Nothing of them is executed."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten.doctor.code import Code
from hasten.doctor.contract import Found, Rule
from hasten.doctor.rules import ALL
from hasten.errors import Misconfigured, Unreadable
from hasten.facts.finding import Finding
from hasten.facts.names import did_you_mean

_LARGEST_BYTES = 10 << 20  # a source file of more was not written by a person
_NOT_LOOKED_INTO = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
_SUPPRESSED = re.compile(r"#\s*hasten:\s*ignore(?:\[([A-Z0-9, ]+)\])?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Linted:
    """sources: the lines of each file in which something was found. unreadable: files that no rule could look at."""

    findings: tuple[Finding, ...]
    sources: Mapping[str, Sequence[str]]
    files: int
    unreadable: tuple[Unreadable, ...]


def lint(paths: Iterable[Path], rules: Collection[Rule] = ALL) -> Linted:
    """Every file, file by file. Raises Unreadable for a path that is not there; what lies in it stops nothing."""
    findings, sources, unreadable, files = list[Finding](), dict[str, list[str]](), list[Unreadable](), 0
    for path in dict.fromkeys(python_files(paths)):
        files += 1
        try:
            text = text_of(path)
            found = lint_text(text, str(path), rules)
        except Unreadable as error:
            unreadable.append(error)
            continue
        if found:
            findings += found
            sources[str(path)] = text.splitlines()
    return Linted(findings=tuple(findings), sources=sources, files=files, unreadable=tuple(unreadable))


def selected(select: str, ignore: str) -> list[Rule]:
    """select, ignore: codes or their beginnings, with commas. Raises Misconfigured for one that no rule has."""
    chosen, left_out = (tuple(filter(None, re.split(r"[, ]+", each))) for each in (select, ignore))
    for code in (*chosen, *left_out):
        if not any(rule.code.startswith(code) for rule in ALL):
            known = {rule.code: rule for rule in ALL}
            raise Misconfigured(f'there is no rule "{code}"', fix=did_you_mean(code, known))
    return [
        rule
        for rule in ALL
        if (not chosen or rule.code.startswith(chosen)) and not (left_out and rule.code.startswith(left_out))
    ]


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Those that are named, and those in folders that are named: not hidden ones, and none of installed packages.

    Raises Unreadable for a path that is not there.
    """
    for path in paths:
        if path.is_dir():
            yield from python_files(sorted(each for each in path.iterdir() if _is_looked_into(each)))
        elif path.exists():
            yield path
        else:
            raise Unreadable("is not there", where=str(path), fix="name a file or a folder that exists")


def text_of(path: Path) -> str:
    """As Python would decode it. Raises Unreadable."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise Unreadable(f"is larger than {_LARGEST_BYTES >> 20} MiB", where=str(path))
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return io.TextIOWrapper(io.BytesIO(content), encoding).read()
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unreadable(f"cannot be read: {error}", where=str(path)) from error


def lint_text(text: str, path: str, rules: Collection[Rule] = ALL) -> list[Finding]:
    """path: it is named by. Raises Unreadable."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of Python, about the file
            code = Code(text)
        found = [_finding(rule, each, path) for rule in rules for each in rule.check(code)]
    except SyntaxError as error:
        raise Unreadable(f"is not Python: {error.msg}", where=f"{path}:{error.lineno or 1}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte; nested deeper than Python goes
        raise Unreadable(f"cannot be parsed: {error or type(error).__name__}", where=path) from error
    lines = text.splitlines()
    kept = [each for each in found if not _is_suppressed(each, lines)]
    return sorted(kept, key=lambda each: (each.line, each.column, each.code))


def _is_looked_into(path: Path) -> bool:
    if path.name.startswith(".") or path.name in _NOT_LOOKED_INTO or path.is_symlink():
        return False
    return path.is_dir() or path.suffix == ".py"


def _finding(rule: Rule, found: Found, path: str) -> Finding:
    node = found.node
    assert isinstance(node, ast.expr | ast.stmt)
    return Finding(
        code=rule.code,
        rule=rule.name,
        path=path,
        line=node.lineno,
        column=node.col_offset + 1,
        end_line=node.end_lineno or node.lineno,
        end_column=(node.end_col_offset or node.col_offset) + 1,
        severity=rule.severity,
        message=found.message,
        fix=found.fix or rule.fix,
        safety=rule.safety,
        technique=rule.technique,
    )


def _is_suppressed(finding: Finding, lines: list[str]) -> bool:
    """By `# hasten: ignore`, or `# hasten: ignore[H201]`, on its first or last line."""
    for number in (finding.line, finding.end_line):
        said = _SUPPRESSED.search(lines[number - 1]) if number <= len(lines) else None
        if said and (said.group(1) is None or finding.code in re.split(r"[, ]+", said.group(1))):
            return True
    return False
