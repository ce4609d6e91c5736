"""The page docs/records.md: every record with its targets and how they ended, newest first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).resolve().parent.parent / "records"
FOLDER = re.compile(r"(\d{4}-\d\d-\d\d)_.+")
HEAD = (
    "<!-- Written by `make docs` from the folders of records/; add a record instead. -->",
    "",
    "# What was measured",
    "",
    "Newest first. [How we measure](measuring.md) says what the columns mean; the name of a record leads to its",
    "command, its control and its samples. Of targets the measured value stands with its interval.",
    "",
    "| record | machine | target | bound | measured | outcome |",
    "|---|---|---|---|---|---|",
)


def page_of_records(folder: Path = RECORDS) -> str:
    homes = sorted((path for path in folder.iterdir() if FOLDER.fullmatch(path.name)), key=_order, reverse=True)
    return "\n".join([*HEAD, *(row for home in homes for row in _rows(home)), ""])


def _order(home: Path) -> tuple[str, str, int]:
    """By day, then by name, then by number, of which the first has none."""
    found = FOLDER.fullmatch(home.name)
    name, _, number = home.name.rpartition("_")
    assert found is not None
    return found[1], name if number.isdigit() else home.name, int(number) if number.isdigit() else 1


def _rows(home: Path) -> Iterator[str]:
    result = json.loads((home / "result.json").read_text(encoding="utf-8"))
    title = (home / "README.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    first = f"[{title}](../records/{home.name})", _machine(home)
    for target in result.get("targets") or [None]:
        cells = ("none", "", "", "") if target is None else _cells(target)
        yield f"| {' | '.join((*first, *cells))} |"
        first = "", ""


def _cells(target: Mapping[str, Any]) -> tuple[str, str, str, str]:
    bound = f"{'≤' if target['at_most'] else '≥'} {target['bound']:g}"
    measured = f"{target['value']:.3g} ({target['low']:.3g} to {target['high']:.3g})"
    return target["name"], bound, measured, target["outcome"]


def _machine(home: Path) -> str:
    told = json.loads((home / "environment.json").read_text(encoding="utf-8"))
    if told.get("accelerator"):
        return f"{told.get('accelerators') or 1} × {told['accelerator']}"
    return f"{told['cores']} cores of {told['processor']}" if "cores" in told else "any"
