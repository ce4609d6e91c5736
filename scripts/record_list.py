"""The page docs/results/records.md: every record with its targets and their outcomes, by question and machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parent.parent / "records"
HEAD = (
    "<!-- Written by `make docs` from the folders of records/; add a record instead. -->",
    "",
    "# What was measured",
    "",
    "The latest run of each question on each machine. [How we measure](../measuring.md) says what the columns mean.",
    "The name of a record links to its command, control and samples, and its date to the headlines of earlier runs,",
    "where there are any. A target's measured value is followed by its interval.",
    "",
    "| record | date | machine | target | bound | measured | outcome |",
    "|---|---|---|---|---|---|---|",
)


def page_of_records(folder: Path = RECORDS) -> str:
    return "\n".join([*HEAD, *(row for home in homes_in(folder) for row in _rows(home, folder)), ""])


def homes_in(folder: Path) -> list[Path]:
    """The folders of all records, by question and machine."""
    return sorted(path.parent for path in folder.glob("*/*/result.json"))


def _rows(home: Path, folder: Path) -> Iterator[str]:
    result = json.loads((home / "result.json").read_text(encoding="utf-8"))
    title = (home / "README.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    place = f"../../records/{home.relative_to(folder).as_posix()}"
    earlier = (home / "history.jsonl").is_file()
    date = f"[{result['date']}]({place}/history.jsonl)" if earlier else result["date"]
    first = f"[{title}]({place})", date, _machine(home)
    for target in result.get("targets") or [None]:
        cells = ("none", "", "", "") if target is None else _cells(target)
        yield f"| {' | '.join((*first, *cells))} |"
        first = "", "", ""


def _cells(target: Mapping[str, Any]) -> tuple[str, str, str, str]:
    bound = f"{'≤' if target['at_most'] else '≥'} {target['bound']:g}"
    measured = f"{target['value']:.3g} ({target['low']:.3g} to {target['high']:.3g})"
    return target["name"], bound, measured, target["outcome"]


def _machine(home: Path) -> str:
    machine = json.loads((home / "environment.json").read_text(encoding="utf-8"))
    if machine.get("accelerator"):
        return f"{machine.get('accelerators') or 1} × {machine['accelerator']}"
    return f"{machine['cores']} cores of {machine['processor']}" if "cores" in machine else "any"
