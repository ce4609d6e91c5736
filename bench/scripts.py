"""Unmodified scripts: what `hasten tune FILE.py` finds, and whether whole runs take the seconds that it predicts.

    python -m bench.scripts FOLDER …            # minutes a script; nothing else may run; writes a record
    python -m bench.scripts --quick FOLDER …    # one run of each; shows that it works, and judges nothing

A folder holds a script and a file RUN, whose one line starts it: `NAME=value python train.py --epochs 2`. A file
OPTIONS there may hold options of hasten, such as `--steps 300`. Each script is tuned once, and run unmodified and,
where a plan was proven, by its plan: whole processes, in turns, every other pair in the opposite order, at once after
the search.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.options import parser_of
from bench.record import PACKAGES, environment, head, write_folder

from hasten.facts.machine import read_machine

PAIRS = 3
WITHIN = 0.15  # of the median of the runs; fixed before the first run
PLAIN, PLANNED = "plain", "planned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """A script. search: seconds of it. predicted: seconds of a whole run, by arm. runs: seconds of whole runs, by arm.
    refused: why it was not tuned."""

    script: str
    search: float
    predicted: dict[str, float]
    runs: dict[str, list[float]]
    speedup: dict[str, float] | None
    choices: list[str]
    refused: str = ""

    @property
    def off(self) -> dict[str, float]:
        """How far each prediction is from the median of the runs, as a share of that."""
        return {arm: self.predicted[arm] / median(runs) - 1 for arm, runs in self.runs.items()}


def main() -> None:
    parser = parser_of("scripts", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="holds a script and a file RUN")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="runs of each script with and without its plan")
    parser.add_argument("--seconds", type=float, default=60, help="of each search")
    options = parser.parse_args()
    found = list[Tuned]()
    for folder in options.folders:
        found.append(measured(folder.resolve(), options.seconds, 1 if options.quick else options.pairs))
        print("\n".join(page_lines(found[-1:])), flush=True)
    if options.quick:
        print("--quick judges nothing: no record was written")
        return
    print(f"written: {written(found, options.records)}")


def measured(folder: Path, seconds: float, pairs: int) -> Tuned:
    given, words = command_of(folder)
    paths = [each for each in (given.get("PYTHONPATH"), os.environ.get("PYTHONPATH")) if each]
    environment = {**os.environ, **given, "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as place:
        plan = str(Path(place, "plan.toml"))
        options = shlex.split((folder / "OPTIONS").read_text(encoding="utf-8")) if (folder / "OPTIONS").exists() else []
        began = time.perf_counter()
        tune = hasten("tune", "--json", "--seconds", str(seconds), "-o", plan, *options, *words)
        done = subprocess.run(tune, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        search = time.perf_counter() - began
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
        if done.returncode:
            why = " ".join(str(answer.get("error") or done.stderr[-500:]).split())
            return Tuned(
                script=folder.name, search=search, predicted={}, runs={}, speedup=None, choices=[], refused=why
            )
        predicted = {PLAIN: float(answer["baseline_seconds"])}
        commands = {PLAIN: [sys.executable, *words]}
        if answer["choices"]:
            predicted[PLANNED] = float(answer["total"]["planned_seconds"])
            commands[PLANNED] = hasten("run", "--plan", plan, *words)
        runs: dict[str, list[float]] = {arm: [] for arm in commands}
        for pair in range(pairs):
            for arm in commands if pair % 2 == 0 else reversed(commands):
                runs[arm].append(seconds_of(commands[arm], folder, environment))
    names = [f"{each['technique']} = {each['value']}" for each in answer["choices"]]
    return Tuned(
        script=folder.name,
        search=search,
        predicted=predicted,
        runs=runs,
        speedup=answer["speedup"],
        choices=names,
    )


def hasten(*words: str) -> list[str]:
    return [sys.executable, "-m", "hasten", *words]


def command_of(folder: Path) -> tuple[dict[str, str], list[str]]:
    """The environment that RUN gives, and what stands behind `python`."""
    words = shlex.split((folder / "RUN").read_text(encoding="utf-8"))
    start = words.index("python")
    return dict(each.split("=", 1) for each in words[:start]), words[start + 1 :]


def seconds_of(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    return time.perf_counter() - began


def page_lines(found: Sequence[Tuned]) -> list[str]:
    """Rows of the table."""
    rows = list[str]()
    for each in found:
        if each.refused:
            rows.append(f"| {each.script} | {each.search:.0f} s | refused: {each.refused} | | | |")
            continue
        speedup = each.speedup
        gain = (
            "no faster" if speedup is None else f"{speedup['ratio']:.2f}× ({speedup['low']:.2f}–{speedup['high']:.2f})"
        )
        cells = [
            f"{each.predicted[arm]:.1f} s, {median(runs):.1f} s ({min(runs):.1f}–{max(runs):.1f}), {each.off[arm]:+.0%}"
            for arm, runs in each.runs.items()
        ]
        realised = "" if PLANNED not in each.runs else f"{median(each.runs[PLAIN]) / median(each.runs[PLANNED]):.2f}×"
        words = [each.script, f"{each.search:.0f} s", gain, *cells, *([""] * (2 - len(cells))), realised]
        rows.append(f"| {' | '.join([*words, ', '.join(each.choices)])} |")
    return rows


def written(found: Sequence[Tuned], records: Path) -> Path:
    machine = read_machine()
    surroundings = environment(machine, PACKAGES)
    tuned = [each for each in found if not each.refused]
    near = [each for each in tuned if all(abs(off) <= WITHIN for off in each.off.values())]
    claim = "Unmodified training scripts: what hasten tune finds, and whether runs take the seconds that it predicts"
    count = max((len(runs) for each in tuned for runs in each.runs.values()), default=0)
    facts = [f"{count} whole runs of each script unmodified, and by its plan, in turns, at once after the search"]
    page = [
        *head(claim, machine, surroundings, facts, "python -m bench.scripts FOLDER …"),
        f"All predictions within {WITHIN:.0%} of the median run: {len(near)} of {len(tuned)} scripts.",
        "",
        "| script | search | gain, predicted | plain: predicted, run, off | by the plan | gain, run | choices |",
        "|---|---|---|---|---|---|---|",
        *page_lines(found),
    ]
    result = {"claim": claim, "within": len(near), "of": len(tuned), "scripts": [each.script for each in found]}
    return write_folder(
        "scripts", records, machine, surroundings, result, [asdict(each) for each in found], "\n".join(page) + "\n"
    )


if __name__ == "__main__":
    main()
