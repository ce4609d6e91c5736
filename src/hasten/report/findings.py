"""Findings of `hasten doctor`, for people and for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any

from hasten.facts.finding import Finding
from hasten.facts.texts import printable

_LONGEST_LINE = 160  # characters of the user's source that are shown


def as_text(findings: Sequence[Finding], sources: Mapping[str, Sequence[str]]) -> str:
    """sources: the lines of each file, by its path: the line that is meant stands below each finding."""
    blocks: list[str] = []
    for each in findings:
        lines = sources.get(each.path, ())
        source = printable(lines[each.line - 1].strip())[:_LONGEST_LINE] if each.line <= len(lines) else ""
        head = f"{printable(each.path)}:{each.line}:{each.column}  {each.code}  {printable(each.message)}"
        blocks.append("\n".join([head, *([f"    {source}"] if source else []), f"    → {each.fix}"]))
    return "\n\n".join(blocks)


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(each) for each in findings], indent=1, default=_plain)


def summary(findings: Sequence[Finding], files: int) -> str:
    looked = f"{files:,} {'file' if files == 1 else 'files'}"
    if not findings:
        return f"nothing found in {looked}"
    return f"{len(findings):,} {'finding' if len(findings) == 1 else 'findings'} in {looked}"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"a {type(value).__name__} is no JSON")
