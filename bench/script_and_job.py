"""A tuned script beside the tuned job of the same training: does a script need rewriting to be fast?

    python -m bench.script_and_job            # ten minutes; nothing else may run; writes a record
    python -m bench.script_and_job --quick    # minutes; shows that it works, and judges nothing

examples/naive.py and examples/photos.py train the same network on the same photographs. Each is tuned once. Whole
processes are then run in turns, every other pair in the opposite order: the script by its plan, and the job by its own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.judging import mean_ratio
from bench.options import parser_of
from bench.record import PACKAGES, ROOT, Target, environment, head, target_table, write_folder

from hasten.facts.machine import read_machine
from hasten.facts.plan_file import read_plan

PAIRS = 6
LEAST = 0.9  # of the job's speed; fixed before the first run
EPOCHS = "8"
JOB = "photos.py:job"
EXAMPLES = ("naive.py", "photos.py", "sample_photos.py")


def main() -> None:
    options = parser_of("script_and_job", __doc__).parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in EXAMPLES:
            shutil.copy(ROOT / "examples" / name, folder)
        script = ["naive.py", "--epochs", EPOCHS]
        seconds = "60" if options.quick else "120"
        run(folder, "tune", "--seconds", seconds, "-o", "script.toml", *script)
        run(folder, "tune", JOB, "--seconds", seconds, "-o", "job.toml")
        commands = {
            "unmodified script": ["run", *script],
            "script": ["run", "--plan", "script.toml", *script],
            "job": ["train", JOB, "--plan", "job.toml"],
        }
        plans = {arm: choices(folder / f"{arm}.toml") for arm in ("script", "job")}
        found: dict[str, list[float]] = {arm: [] for arm in commands}
        for pair in range(1 if options.quick else PAIRS):
            for arm in commands if pair % 2 == 0 else reversed(commands):
                found[arm].append(run(folder, *commands[arm]))
                print(f"{arm}: {found[arm][-1]:.2f} s", flush=True)
    if options.quick:
        print("--quick judges nothing: no record was written")
        return
    print(f"written: {written(found, plans, options.records)}")


def run(folder: Path, *words: str) -> float:
    """Seconds of a whole process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "hasten", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def choices(plan: Path) -> str:
    return ", ".join(f"{each.choice.technique} = {each.choice.value}" for each in read_plan(plan).choices) or "none"


def written(found: dict[str, list[float]], plans: dict[str, str], records: Path) -> Path:
    machine = read_machine()
    surroundings = environment(machine, [*PACKAGES, "scikit-learn", "pillow"])
    low, value, high = mean_ratio(found["job"], found["script"])
    target = Target(
        name="speed of the script by its plan, of the job's by its own",
        bound=LEAST,
        at_most=False,
        low=low,
        value=value,
        high=high,
    )
    rows = [f"| {arm} | {told(seconds)} | {plans.get(arm, '')} |" for arm, seconds in found.items()]
    claim = "An unmodified script by its plan, beside the job of the same training by its own"
    facts = [f"{PAIRS} whole processes of each in turns, {EPOCHS} epochs; each was tuned once"]
    page = [
        *head(claim, machine, surroundings, facts, "python -m bench.script_and_job"),
        *target_table([target]),
        "",
        "| training | seconds: mean (shortest to longest) | plan |",
        "|---|---|---|",
        *rows,
    ]
    result = {"claim": claim, "targets": [asdict(target) | {"outcome": target.outcome}], "plans": plans}
    lines = [
        {"arm": arm, "pair": pair, "seconds": each} for arm, all_ in found.items() for pair, each in enumerate(all_)
    ]
    return write_folder("script-and-job", records, machine, surroundings, result, lines, "\n".join(page) + "\n")


def told(seconds: Sequence[float]) -> str:
    return f"{sum(seconds) / len(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"


if __name__ == "__main__":
    main()
