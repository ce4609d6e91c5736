"""`make demo`: an ordinary script, checked, run, tuned as it is, patched, and run again.

Each command is shown as a person would type it, in a folder that holds a copy of examples/naive.py. The last screen
compares the two trainings. They are single runs, one after the other; only what `hasten tune` measured has an interval.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hasten.facts.machine import read_machine
from hasten.facts.plan_file import read_plan
from hasten.facts.trials import Confirmed, read_trials, trials_beside
from hasten.report.display import duration, interval, ratio, table
from hasten.report.plan_sentence import NOTHING_PROVEN
from hasten.report.terminal.output import show

EXAMPLES = Path(__file__).resolve().parent
SCRIPT = ("naive.py", "--epochs", "8")
EVALUATED = re.compile(r"valid accuracy (?P<accuracy>[\d.]+), (?P<seconds>[\d.]+) s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One training, as its log says. seconds: from its first step to its last evaluation. best: accuracy."""

    seconds: float
    best: float


def hasten(folder: Path, *arguments: str, expected: Collection[int] = (0,)) -> None:
    """A hasten command, shown and run. expected: exit codes."""
    print(f"\n$ hasten {' '.join(arguments)}\n", flush=True)
    done = subprocess.run([sys.executable, "-m", "hasten", *arguments], cwd=folder, check=False)
    if done.returncode not in expected:
        raise SystemExit(done.returncode)


def run_script(folder: Path) -> Trained:
    """The script as it is there. It prints a line for every step; only those of its evaluations are shown."""
    print(f"\n$ python {' '.join(SCRIPT)} | grep valid\n", flush=True)
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    found = list[Trained]()
    with subprocess.Popen(
        [sys.executable, "-u", *SCRIPT], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        for line in script.stdout:
            if evaluated := EVALUATED.search(line):
                print(line, end="", flush=True)
                best = max([float(evaluated["accuracy"]), *(each.best for each in found)])
                found.append(Trained(seconds=float(evaluated["seconds"]), best=best))
    if script.returncode or not found:
        raise SystemExit(script.returncode or f"{SCRIPT[0]} printed no evaluation")
    return found[-1]


def patch_script(folder: Path) -> None:
    patch = (folder / "plan.patch").read_text(encoding="utf-8")
    print(f"\n$ cat plan.patch\n\n{patch}\n$ git apply plan.patch", flush=True)
    subprocess.run(["git", "apply", "plan.patch"], cwd=folder, check=True)


def compare(trainings: Mapping[str, Trained], folder: Path) -> None:
    """The last screen."""
    script = next(iter(trainings.values()))
    rows = [
        [name, duration(each.seconds), f"{script.seconds / each.seconds:.1f}×", f"{each.best:.3f}"]
        for name, each in trainings.items()
    ]
    machine = read_machine()
    print(f"\n  python {' '.join(SCRIPT)}, {machine.cores} cores of {machine.processor}\n")
    print("\n".join(f"  {line}" for line in table(["", "time", "speed", "best accuracy"], rows)))
    plan = folder / "plan.toml"
    choices = ", ".join(str(each.choice) for each in read_plan(plan).choices)
    confirmed = [record for record in read_trials(trials_beside(plan)) if isinstance(record, Confirmed)]
    proven = NOTHING_PROVEN
    if choices and confirmed:
        found = confirmed[-1].speedup
        proven = f"{ratio(found)} faster (95 % {interval(found)}): the whole script, startup included"
    lines = [
        ("proven", proven),
        *([("by", choices)] if choices else []),
        ("note", "the table has single runs without startup; chance and a busy machine change them"),
        ("report", str(folder / "report.html")),
        ("next", "hasten tune YOUR_SCRIPT.py --its-options"),
    ]
    show("", lines)


def main() -> None:
    os.environ.setdefault("COLUMNS", "100")  # where the output is no terminal
    folder = Path(tempfile.mkdtemp(prefix="hasten-demo-"))
    for name in ("naive.py", "sample_photos.py"):
        shutil.copy(EXAMPLES / name, folder)
    hasten(folder, "doctor", SCRIPT[0], expected=(0, 1))
    trainings = {"as it was": run_script(folder)}
    hasten(folder, "tune", "--busy", "--seconds", "90", *SCRIPT)  # on a busy machine, too; its result says how busy
    if read_plan(folder / "plan.toml").choices:
        patch_script(folder)
        trainings["with the patch"] = run_script(folder)
    hasten(folder, "report", "plan.toml", "--output", "report.html")
    compare(trainings, folder)


if __name__ == "__main__":
    main()
