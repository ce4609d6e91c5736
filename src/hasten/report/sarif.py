"""Findings in the Static Analysis Results Interchange Format, version 2.1.0
(https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html), which code hosts and editors read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hasten.facts.finding import Finding, Severity

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.FAILS: "error", Severity.WRONG: "error", Severity.SLOW: "warning", Severity.STYLE: "note"}


def as_sarif(findings: Sequence[Finding], rules: Iterable[tuple[str, str, str]], version: str) -> str:
    """rules: code, name and headline of those that were looked for. version: of hasten."""
    described: list[dict[str, Any]] = [
        {"id": code, "name": name, "shortDescription": {"text": headline}} for code, name, headline in sorted(rules)
    ]
    numbers = {rule["id"]: number for number, rule in enumerate(described)}
    run = {
        "tool": {"driver": {"name": "hasten", "version": version, "rules": described}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, numbers) for each in findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _result(finding: Finding, numbers: Mapping[str, int]) -> dict[str, Any]:
    cell = f" (cell {finding.cell})" if finding.cell is not None else ""
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.path)}}
    if finding.cell is None:  # lines of a notebook's file are not those of its cells
        location["region"] = _region(finding)
    return {
        "ruleId": finding.code,
        "ruleIndex": numbers[finding.code],
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}{cell}: {finding.fix}"},
        "locations": [{"physicalLocation": location}] if finding.path else [],
    }


def _region(finding: Finding) -> dict[str, int]:
    region = {"startLine": finding.line}
    if finding.column:
        region |= {"startColumn": finding.column, "endLine": finding.end_line, "endColumn": finding.end_column}
    return region


def _uri(path: str) -> str:
    plain = Path(path)
    if plain.is_absolute():
        return f"file://{quote(plain.as_posix(), errors='surrogateescape')}"
    return quote(plain.as_posix(), errors="surrogateescape")
