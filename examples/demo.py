"""`make demo`: what slows a naive script; its job tuned, trained as it is and by the plan that came of it.

Each command is shown as a person would type it. The table at the end sets what was predicted beside what two single
runs took, one after the other, both from the first step on: a prediction has an interval, a single run has none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.facts.trials import Confirmed, read_trials, trials_beside
from hasten.report.terminal import show
from hasten.report.text import duration, table

EXAMPLES = Path(__file__).resolve().parent
NAIVE = "examples/naive.py"  # the same network and data, as many write it
JOB = "examples/digits.py:job"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One training, as its log says: seconds from its first step to its last evaluation, and the last accuracy."""

    seconds: float
    accuracy: float


def run(*arguments: str, expected: Collection[int] = (0,)) -> None:
    """A hasten command, shown and run from the folder above the examples. expected: exit codes."""
    print(f"\n$ hasten {' '.join(arguments)}\n", flush=True)
    done = subprocess.run([sys.executable, "-m", "hasten", *arguments], cwd=EXAMPLES.parent, check=False)
    if done.returncode not in expected:
        raise SystemExit(done.returncode)


def trained(folder: Path) -> Trained:
    lines: list[Mapping[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return Trained(seconds=lines[-1]["seconds"], accuracy=lines[-1]["results"]["accuracy"])


def row(name: str, run: Trained, predicted: float) -> list[str]:
    apart = f"{run.seconds / predicted - 1:+.0%}".replace("%", " %")
    return [name, duration(predicted), duration(run.seconds), apart, f"{run.accuracy:.4f}"]


def main() -> None:
    os.environ.setdefault("COLUMNS", "120")  # where the output is no terminal
    folder = Path(tempfile.mkdtemp(prefix="hasten-demo-"))
    plan, report = folder / "plan.toml", folder / "report.html"
    run("doctor", NAIVE, expected=(0, 1))
    run("tune", JOB, "--output", str(plan))
    run("train", JOB, "--run-dir", str(folder / "plain"))
    run("train", JOB, "--plan", str(plan), "--run-dir", str(folder / "planned"))
    run("report", str(plan), "--output", str(report))

    lines = [("plan", str(plan)), ("report", str(report)), ("next", "hasten explain precision")]
    confirmed = [record for record in read_trials(trials_beside(plan)) if isinstance(record, Confirmed)]
    if confirmed:
        plain, planned = confirmed[-1].plain, confirmed[-1].planned
        header = ["digits", "predicted", "took", "apart", "accuracy"]
        rows = [
            row("as it is", trained(folder / "plain"), plain.total - plain.one_off),
            row("by the plan", trained(folder / "planned"), planned.total - planned.one_off),
        ]
        print("\n" + "\n".join(f"  {line}" for line in table(header, rows)))
    show("", lines)


if __name__ == "__main__":
    main()
