"""`make demo`: what slows a naive script; the same training as a job, tuned, and trained by the plan that came of it.

Each command is shown as a person would type it. The table at the end sets what was predicted beside what three single
runs took, one after the other, all from the first step on: a prediction has a spread, a single run has none.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.facts.plan import Between
from hasten.facts.trials import Confirmed, read_trials, trials_beside
from hasten.report.display import BY_WINDOWS, duration, spread, table
from hasten.report.terminal.output import show

EXAMPLES = Path(__file__).resolve().parent
NAIVE = "examples/naive.py"  # the same network and data, as many write it
JOB = "examples/photos.py:job"
EPOCHS = 8  # of the job, and of the script
EVALUATED = re.compile(r"valid accuracy (?P<accuracy>[\d.]+), (?P<seconds>[\d.]+) s")


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


def run_naive() -> Trained:
    """The script, of whose lines only those of an evaluation are shown: it prints one for every step."""
    command = ["python", NAIVE, "--epochs", str(EPOCHS)]
    print(f"\n$ {' '.join(command)} | grep valid\n", flush=True)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    found = None
    with subprocess.Popen(
        [sys.executable, "-u", *command[1:]], cwd=EXAMPLES.parent, env=environment, stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        for line in script.stdout:
            if told := EVALUATED.search(line):
                print(line, end="", flush=True)
                found = Trained(seconds=float(told["seconds"]), accuracy=float(told["accuracy"]))
    if script.returncode or found is None:
        raise SystemExit(script.returncode or f"{NAIVE} has told no evaluation")
    return found


def trained(folder: Path) -> Trained:
    lines: list[Mapping[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return Trained(seconds=lines[-1]["seconds"], accuracy=lines[-1]["results"]["accuracy"])


def row(name: str, run: Trained, predicted: str = "–") -> list[str]:
    return [name, predicted, duration(run.seconds), f"{run.accuracy:.4f}"]


def prediction(total: float, between: Between | None, start: float) -> str:
    """From the first step on, as a run's log counts: without the seconds before it."""
    later = between and Between(low=between.low - start, high=between.high - start)
    return f"{duration(total - start)}{spread(later, BY_WINDOWS)}"


def main() -> None:
    os.environ.setdefault("COLUMNS", "120")  # where the output is no terminal
    folder = Path(tempfile.mkdtemp(prefix="hasten-demo-"))
    plan, report = folder / "plan.toml", folder / "report.html"
    run("doctor", NAIVE, expected=(0, 1))
    naive = run_naive()
    run("tune", JOB, "--output", str(plan))
    run("train", JOB, "--run-dir", str(folder / "plain"))
    run("train", JOB, "--plan", str(plan), "--run-dir", str(folder / "planned"))
    run("report", str(plan), "--output", str(report))

    lines = [("plan", str(plan)), ("report", str(report)), ("next", "hasten explain precision")]
    confirmed = [record for record in read_trials(trials_beside(plan)) if isinstance(record, Confirmed)]
    if confirmed:
        last, header = confirmed[-1], ["photos", "predicted", "took", "accuracy"]
        plain = prediction(last.plain.total, last.plain.between, last.plain.one_off)
        planned = prediction(last.planned_seconds, last.planned_between, last.planned.one_off)
        rows = [
            row("the script", naive),
            row("as a job", trained(folder / "plain"), plain),
            row("by the plan", trained(folder / "planned"), planned),
        ]
        print("\n" + "\n".join(f"  {line}" for line in table(header, rows)))
    show("", lines)


if __name__ == "__main__":
    main()
