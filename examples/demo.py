"""`make demo`: an ordinary script checked and run; the same training as a job, tuned, and trained with the plan.

Each command is shown as a person would type it. The last screen compares the three trainings. They are single runs, one
after the other; only what `hasten tune` measured has an interval.
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

from hasten.facts.machine import read_machine
from hasten.facts.plan_file import read_plan
from hasten.facts.trials import Confirmed, read_trials, trials_beside
from hasten.report.display import duration, interval, ratio, table
from hasten.report.plan_sentence import NOTHING_PROVEN
from hasten.report.terminal.output import show

EXAMPLES = Path(__file__).resolve().parent
NAIVE = "examples/naive.py"
JOB = "examples/photos.py:job"  # the same network and data
EPOCHS = 8  # of the job, and of the script
EVALUATED = re.compile(r"valid accuracy (?P<accuracy>[\d.]+), (?P<seconds>[\d.]+) s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One training, as its log says. seconds: from its first step to its last evaluation. best: accuracy."""

    seconds: float
    best: float


def run(*arguments: str, expected: Collection[int] = (0,)) -> None:
    """A hasten command, shown and run from the folder above the examples. expected: exit codes."""
    print(f"\n$ hasten {' '.join(arguments)}\n", flush=True)
    done = subprocess.run([sys.executable, "-m", "hasten", *arguments], cwd=EXAMPLES.parent, check=False)
    if done.returncode not in expected:
        raise SystemExit(done.returncode)


def run_script() -> Trained:
    """The script. It prints a line for every step; only those of its evaluations are shown."""
    command = ["python", NAIVE, "--epochs", str(EPOCHS)]
    print(f"\n$ {' '.join(command)} | grep valid\n", flush=True)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    found = list[Trained]()
    with subprocess.Popen(
        [sys.executable, "-u", *command[1:]], cwd=EXAMPLES.parent, env=environment, stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        for line in script.stdout:
            if evaluated := EVALUATED.search(line):
                print(line, end="", flush=True)
                best = max([float(evaluated["accuracy"]), *(each.best for each in found)])
                found.append(Trained(seconds=float(evaluated["seconds"]), best=best))
    if script.returncode or not found:
        raise SystemExit(script.returncode or f"{NAIVE} printed no evaluation")
    return found[-1]


def run_job(folder: Path, *options: str) -> Trained:
    run("train", JOB, *options, "--run-dir", str(folder))
    lines: list[Mapping[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    accuracies = [line["results"]["accuracy"] for line in lines if "results" in line]
    return Trained(seconds=lines[-1]["seconds"], best=max(accuracies))


def compare(trainings: Mapping[str, Trained], plan: Path) -> None:
    """The last screen."""
    script = next(iter(trainings.values()))
    rows = [
        [name, duration(each.seconds), f"{script.seconds / each.seconds:.1f}×", f"{each.best:.3f}"]
        for name, each in trainings.items()
    ]
    machine = read_machine()
    print(f"\n  One training, three ways: photographs, {EPOCHS} epochs, {machine.cores} cores of {machine.processor}\n")
    print("\n".join(f"  {line}" for line in table(["", "time", "speed", "best accuracy"], rows)))
    confirmed = [record for record in read_trials(trials_beside(plan)) if isinstance(record, Confirmed)]
    proven = bool(read_plan(plan).choices) and bool(confirmed)
    choices = ", ".join(f"{each.choice.technique} = {each.choice.value}" for each in read_plan(plan).choices)
    verdict = NOTHING_PROVEN
    if proven:
        found = confirmed[-1].speedup
        verdict = f"{ratio(found)} faster with the plan (95 % {interval(found)}): the whole job, startup included"
    lines = [
        ("proven", verdict),
        *([("by", choices)] if proven else []),
        (
            "note",
            "the table has single runs without startup; chance and a busy machine change them",
        ),
        ("report", str(plan.with_name("report.html"))),
        ("next", "hasten doctor YOUR_SCRIPT.py"),
        ("then", "hasten tune YOUR_SCRIPT.py    (drafts the job; docs/start/job.md explains it)"),
    ]
    show("", lines)


def main() -> None:
    os.environ.setdefault("COLUMNS", "100")  # where the output is no terminal
    folder = Path(tempfile.mkdtemp(prefix="hasten-demo-"))
    plan = folder / "plan.toml"
    run("doctor", NAIVE, expected=(0, 1))
    trainings = {"the script": run_script()}
    run("tune", JOB, "--output", str(plan), "--busy")  # on a busy machine, too; its result says how busy
    trainings["as a job"] = run_job(folder / "baseline")
    if read_plan(plan).choices:
        trainings["as a job, by the plan"] = run_job(folder / "planned", "--plan", str(plan))
    run("report", str(plan), "--output", str(plan.with_name("report.html")))
    compare(trainings, plan)


if __name__ == "__main__":
    main()
