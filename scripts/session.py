"""The terminal session of the README: recorded by running its commands, drawn as an SVG by `make docs`.

    python scripts/session.py      # minutes, with nothing else running: writes docs/images/session.txt

The transcript holds what the commands printed, word for word. Lines left out are one line of `⋮`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
TRANSCRIPT = ROOT / "docs" / "images" / "session.txt"
WIDTH = 100
JOB = "examples/photos.py:job"
SHOWN_RULES = ("H413", "H101")  # of the doctor's findings
WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # nothing is loaded from another host
STYLES = (
    (r"^\$ .*", "bold"),
    (r"^\S+:\d+:\d+", "cyan"),
    (r"  H\d+ ", "bold yellow"),
    (r"^ +→.*", "green"),
    (r"^ +verdict .*", "bold green"),
    (r"^ +next .*", "bold cyan"),
    (r"^ *⋮$", "bright_black"),
)


def record() -> str:
    with tempfile.TemporaryDirectory() as folder:
        plan = str(Path(folder, "plan.toml"))
        parts = [
            run("doctor", "examples/naive.py", shown=of_rules),
            run("tune", JOB, "-o", plan, "--seconds", "120", shown=from_the_verdict),
            run("train", JOB, "--plan", plan, "--run-dir", str(Path(folder, "run")), shown=last_lines),
        ]
    return "\n".join(parts).replace(f"{folder}/", "")


def run(*arguments: str, shown: Callable[[list[str]], Iterator[str]]) -> str:
    environment = {**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "hasten", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return "\n".join([f"$ hasten {' '.join(arguments)}", *shown(done.stdout.splitlines()), ""])


def of_rules(lines: list[str]) -> Iterator[str]:
    """The findings of the chosen rules, and the result."""
    gap = False
    *findings, result = "\n".join(lines).split("\n\n")
    for finding in findings:
        if any(f"  {rule}  " in finding for rule in SHOWN_RULES):
            yield from [*finding.split("\n"), ""]
            gap = False
        elif not gap:
            yield "⋮"
            gap = True
    yield from result.split("\n")


def from_the_verdict(lines: list[str]) -> Iterator[str]:
    """Its headline, its reasons, the machine and the next command."""
    start = next(number for number, line in enumerate(lines) if line.startswith("  verdict"))
    end = next(number for number, line in enumerate(lines) if line.startswith("  machine"))
    yield "⋮"
    yield from lines[start : end + 1]
    yield "⋮"
    yield lines[-1]


def last_lines(lines: list[str]) -> Iterator[str]:
    yield "⋮"
    yield from lines[next(number for number, line in enumerate(lines) if line.startswith("  verdict")) :]


def session_svg(transcript: str) -> str:
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    for line in transcript.rstrip().splitlines():
        text = Text(line)
        for pattern, style in STYLES:
            text.highlight_regex(pattern, style)
        console.print(text)
    return WEB_FONT.sub("", console.export_svg(title="hasten", unique_id="session"))


if __name__ == "__main__":
    TRANSCRIPT.write_text(record(), encoding="utf-8")
