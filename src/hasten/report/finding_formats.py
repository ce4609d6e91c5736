"""Findings of `hasten doctor`, for people and for machines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from difflib import diff_bytes, unified_diff
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hasten.facts.finding import Finding, Price, Safety, Severity
from hasten.facts.formatting import printable, shortened
from hasten.report.display import MOST_COLUMNS, many, percent
from hasten.report.sentence import Sentence
from hasten.report.terminal.output import wrapped

_NEARLY_ALL = 0.99
_LEAST_GAIN = 1.05  # what is less would read as 1


def as_text(findings: Sequence[Finding]) -> str:
    """A block for each: its place, the line that is meant, and what to do. Findings of one rule in one source file that
    ask for the same share a block, with the place of the first in full."""
    return "\n\n".join(map(_block, in_blocks(findings)))


def in_blocks(findings: Sequence[Finding]) -> list[list[Finding]]:
    blocks: dict[object, list[Finding]] = {}
    for each in findings:
        same = (each.path, each.code, each.severity, remedy(each))
        blocks.setdefault(same if each.source else each, []).append(each)  # those of a job each have their own price
    return [*blocks.values()]


def _block(findings: Sequence[Finding]) -> str:
    first = findings[0]
    source = shortened(printable(first.source), MOST_COLUMNS - 4)
    shown = [printable(first.part)] if first.part and first.path else []
    priced = [_price(first.price)] if first.price is not None else []
    also = wrapped(places, MOST_COLUMNS - 4, indent=2) if (places := also_at(findings)) else []
    below = [source, *shown, *priced, *also, *wrapped(f"→ {remedy(first)}", MOST_COLUMNS - 4, indent=2)]
    head = wrapped(f"{printable(first.place)}  {first.code}  {printable(first.message)}", MOST_COLUMNS, indent=2)
    return "\n".join([*head, *(f"    {line}" for line in below if line)])


def also_at(findings: Sequence[Finding]) -> str:
    """The places of a block's other findings; empty where there are none."""
    first, *others = findings
    places = ", ".join(each.place.removeprefix(first.path) for each in others)
    return f"also at {printable(first.path + places)}" if others else ""


def remedy(finding: Finding) -> str:
    return printable(finding.fix) + ("  [--fix]" if finding.safety is Safety.SAFE else "")


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps([asdict(each) for each in findings], indent=1, default=attrgetter("value"))


def as_github(findings: Sequence[Finding]) -> str:
    """Workflow commands, which GitHub shows beside the lines of a change
    (https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands)."""
    return "\n".join(
        f"::warning {_github_place(each)}title={_property(each.code)}::{_data(f'{each.message}: {each.fix}')}"
        for each in findings
    )


def _price(price: Price) -> str:
    share = price.seconds / price.whole_seconds
    shown = share <= _NEARLY_ALL and price.most_gain >= _LEAST_GAIN
    gain = f", {price.most_gain:.2g} times as fast" if shown else ""
    seconds = f"{price.seconds:.3g} s of an epoch of {price.whole_seconds:.3g} s"
    return f"at most {seconds} to gain ({percent(share)}{gain}; upper bound)"


def _github_place(finding: Finding) -> str:
    if not finding.path:
        return ""
    if finding.cell is not None:  # lines of a notebook's file are not those of its cells
        return f"file={_property(finding.path)},"
    column = (
        f"col={finding.column},endLine={finding.end_line},endColumn={finding.end_column}," if finding.column else ""
    )
    return f"file={_property(finding.path)},line={finding.line},{column}"


def as_diff(path: str, before: bytes, after: bytes) -> bytes:
    """Unified, as `patch` reads it: in the file's own bytes, whose lines end in a line feed alone."""
    name = printable(path).encode()
    lines = diff_bytes(unified_diff, _lines(before), _lines(after), name, name)
    return b"".join(each if each.endswith(b"\n") else each + b"\n\\ No newline at end of file\n" for each in lines)


def _lines(content: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


def summary(findings: Sequence[Finding], files: int, unreadable: int = 0) -> Sentence:
    """files: that were read; unreadable: that could not be. The small print counts the findings of each rule, most
    first."""
    found = many(len(findings), "finding") if findings else "Nothing found"
    left_out = f"; {unreadable:,} could not be read" if unreadable else ""
    codes = Counter(each.code for each in findings).most_common()
    return Sentence(
        headline=f"{found} in {many(files, 'file')}{left_out}",
        small_print=", ".join(f"{number:,} × {code}" for code, number in codes),
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = dict.fromkeys(Severity, "warning") | {
    Severity.FAILS: "error",
    Severity.WRONG: "error",
    Severity.STYLE: "note",
    Severity.ONCE: "note",
}


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
    named, root = quote(Path(finding.path).as_posix(), errors="surrogateescape"), Path(finding.path).is_absolute()
    location: dict[str, Any] = {"artifactLocation": {"uri": f"file://{named}" if root else named}}
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
