"""The terminal session of the README: recorded by running its commands, drawn as an SVG by `make docs`.

    python scripts/session.py      # minutes, with nothing else running: writes docs/images/session.txt

The transcript holds what the commands printed, word for word. Lines left out are one line of `⋮`.
"""

from __future__ import annotations

import os
import re
import shutil
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
SCRIPT = ("naive.py", "--epochs", "8")
FILES = ("naive.py", "sample_photos.py")  # of examples/
SHOWN_RULES = ("H413", "H101")  # of the doctor's findings
WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # nothing is loaded from another host
STYLES = (
    (r"^\$ .*", "bold"),
    (r"^\S+:\d+:\d+", "cyan"),
    (r"  H\d+ ", "bold yellow"),
    (r"^ +→.*", "green"),
    (r"^\+.*", "green"),
    (r"^-.*", "red"),
    (r"^ +verdict .*", "bold green"),
    (r"^ +next .*", "bold cyan"),
    (r"^ *⋮$", "bright_black"),
)


def record() -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            shutil.copy(ROOT / "examples" / name, folder)
        parts = [
            run(folder, "tune", "--seconds", "90", *SCRIPT, shown=from_what_was_found),
            "\n".join(["$ cat plan.patch", Path(folder, "plan.patch").read_text(encoding="utf-8")]),
            run(folder, "doctor", SCRIPT[0], shown=of_rules),
        ]
    return "\n".join(parts)


def run(folder: str, *arguments: str, shown: Callable[[list[str]], Iterator[str]]) -> str:
    environment = {**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "hasten", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return "\n".join([f"$ hasten {' '.join(arguments)}", *shown(done.stdout.splitlines()), ""])


def from_what_was_found(lines: list[str]) -> Iterator[str]:
    """What standard output has, from what was found on."""
    yield from lines[next(number for number, line in enumerate(lines) if line.startswith("  loader")) :]


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
