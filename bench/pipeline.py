"""From a naive script to a hastened run, technique by technique (goal G10).

    python -m bench.pipeline                 # two hours, in which nothing else may run; writes a record for each job
    python -m bench.pipeline --only images   # one of them
    python -m bench.pipeline --seeds 10      # whole runs from as many; on a machine that drifts five leave much open
    python -m bench.pipeline --quick         # half an hour; shows that it works, and judges nothing

Three jobs, each written twice: as a script as many are written (examples/naive.py, pipeline_naive.py), and as a job for
hasten (pipeline_jobs.py). The job is tuned by `hasten tune --seconds 240`. Then the script, the job without a plan
and the job with the first, the first two … of the plan's choices take turns in windows of optimizer steps. At last come
whole runs from several seeds: the script, the plan, and the plan with early stopping, each with an empty cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.arms import Arm, Protocol, run_arms
from bench.child import load
from bench.judging import controlled
from bench.options import parser_of
from bench.pictures import enlarge
from bench.pipeline_jobs import PHOTO_EPOCHS
from bench.pipeline_record import NAIVE, PLAIN, PLANNED, SEEDS, STOPPED, Found, Whole, write
from bench.record import ROOT

from hasten.facts.plan import Plan, PlannedChoice
from hasten.facts.plan_file import plan_to_toml, read_plan

JOBS = ROOT / "bench" / "pipeline_jobs.py"
ARMS = ROOT / "bench" / "pipeline_arms.py"
OURS = ROOT / "bench" / "before_after_arms.py"
EVALUATED = re.compile(r"valid (?:loss (?P<loss>[\d.]+), valid )?accuracy (?P<accuracy>[\d.]+), (?P<seconds>[\d.]+) s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A job and its script. stops: whether it has evaluations enough to stop early."""

    name: str
    metric: str
    warmup_steps: int = 8
    stops: bool = True

    @property
    def job(self) -> str:
        return f"{JOBS}:{self.name}"

    @property
    def stopped(self) -> str:
        return f"{JOBS}:{self.name}_stopped"

    def script(self, seed: int) -> list[str]:
        """The command that runs it."""
        if self.name != "images":
            return [sys.executable, "-m", "bench.pipeline_naive", self.name, "--seed", str(seed)]
        return [sys.executable, f"{ROOT}/examples/naive.py", "--epochs", str(PHOTO_EPOCHS), "--seed", str(seed)]

    @property
    def naive_arm(self) -> Arm:
        arguments = {"name": self.name} if self.name != "images" else {"folder": os.environ["HASTEN_PHOTOS"]}
        entry = f"{ARMS}:{'images' if self.name == 'images' else 'script'}"
        return Arm(name=NAIVE, entry=entry, arguments=arguments)


PIPELINES = {
    "images": Pipeline(name="images", metric="accuracy"),
    "text": Pipeline(name="text", metric="loss", stops=False),
    "rows": Pipeline(name="rows", metric="accuracy", warmup_steps=250),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """search_seconds: that `hasten tune` is given."""

    search_seconds: int = 240
    seeds: int = SEEDS


FULL, QUICK = Scale(), Scale(search_seconds=30, seeds=1)
FEWEST_SEEDS = 2
ROUNDS = 12
WINDOW_SECONDS = 3.2  # two where the machine is half as fast again as at the start


def main() -> None:
    options = _options()
    scale = QUICK if options.quick else Scale(seeds=options.seeds)
    with tempfile.TemporaryDirectory(prefix="hasten-pipeline-") as home:
        os.environ["HASTEN_CACHE"] = str(Path(home, "cache"))
        if "images" in options.only:
            small_photos: Any = load(f"{ROOT}/examples/sample_photos.py:sample_photos")
            os.environ["HASTEN_PHOTOS"] = str(enlarge(small_photos(), Path(home, "photos")))
        for name in options.only:
            folder = Path(home, name)
            folder.mkdir()
            found = _measured(PIPELINES[name], folder, scale)
            if options.quick:
                print("--quick judges nothing: no record was written", flush=True)
            else:
                print(f"written: {write(found, options.records)}", flush=True)


def _measured(pipeline: Pipeline, folder: Path, scale: Scale) -> Found:
    plan, tuning_seconds = tuned(pipeline.job, folder / "plan.toml", scale.search_seconds)
    _say(f"{pipeline.name}: tuned in {tuning_seconds:.0f} s: {', '.join(choices_of(plan)) or 'nothing'}")
    protocol = Protocol(rounds=ROUNDS, warmup_steps=pipeline.warmup_steps, seconds=WINDOW_SECONDS)
    arms = [pipeline.naive_arm, *_arms(pipeline, plan, folder)]
    itself = controlled(arms[-1], protocol)
    measured = run_arms(arms, protocol)
    _say(f"{pipeline.name}: windows are measured; whole runs from {scale.seeds} seeds follow")
    wholes = _whole_runs(pipeline, folder / "plan.toml", scale.seeds)
    return Found(
        name=pipeline.name,
        metric=pipeline.metric,
        plan=plan,
        tuning_seconds=tuning_seconds,
        arms=tuple(arm.name for arm in arms),
        protocol=protocol,
        control=itself,
        measured=measured,
        wholes=wholes,
    )


def tuned(job: str, path: Path, seconds: int = FULL.search_seconds) -> tuple[Plan, float]:
    """The plan that `hasten tune` finds, and the seconds that it took."""
    command = [sys.executable, "-m", "hasten", "tune", job, "--output", str(path), "--seconds", str(seconds)]
    began = time.monotonic()
    subprocess.run(command, check=True, cwd=ROOT)
    return read_plan(path), time.monotonic() - began


def _arms(pipeline: Pipeline, plan: Plan, folder: Path) -> list[Arm]:
    """The job without a plan, and with so many of its choices."""
    names, arms = [PLAIN, *(f"+ {name}" for name in choices_of(plan))], list[Arm]()
    for count, name in enumerate(names):
        path = folder / f"first-{count}.toml"
        path.write_text(plan_to_toml(Plan(choices=plan.choices[:count])), encoding="utf-8")
        arms.append(Arm(name=name, entry=f"{OURS}:example", arguments={"job": pipeline.job, "plan": str(path)}))
    return arms


def choices_of(plan: Plan) -> list[str]:
    """In words, in their order."""
    return [_said(item) for item in plan.choices]


def _said(item: PlannedChoice) -> str:
    choice = item.choice
    value = "" if choice.value is True else f" {choice.value}"
    options = ", ".join(f"{name} {value}" for name, value in choice.options.items())
    return f"{choice.technique}{value}{f' ({options})' if options else ''}"


# ── whole runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _whole_runs(pipeline: Pipeline, plan: Path, seeds: int) -> dict[str, list[Whole]]:
    """In turns, the order turned round with every seed."""
    runs: dict[str, Callable[[int], Whole]] = {
        NAIVE: lambda seed: _scripts(pipeline, seed),
        PLAIN: lambda seed: ours(pipeline, pipeline.job, None, seed),
        PLANNED: lambda seed: ours(pipeline, pipeline.job, plan, seed),
    }
    if pipeline.stops:
        runs[STOPPED] = lambda seed: ours(pipeline, pipeline.stopped, plan, seed)
    found: dict[str, list[Whole]] = {name: [] for name in runs}
    for seed in range(seeds):
        for name in list(runs)[:: 1 if seed % 2 == 0 else -1]:
            found[name].append(runs[name](seed))
            last = found[name][-1]
            _say(f"{pipeline.name}, seed {seed}, {name}: {last.seconds:.1f} s, {pipeline.metric} {last.value:.4f}")
    return found


def _scripts(pipeline: Pipeline, seed: int) -> Whole:
    """What the script says of itself: its seconds begin when its data and its model are there."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = pipeline.script(seed)
    if pipeline.name == "images":
        command += ["--data", os.environ["HASTEN_PHOTOS"]]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment).stdout
    curve = [(float(each["seconds"]), float(each[pipeline.metric])) for each in EVALUATED.finditer(said)]
    return Whole(seconds=curve[-1][0], value=curve[-1][1], curve=curve)


def ours(pipeline: Pipeline, job: str, plan: Path | None, seed: int) -> Whole:
    """A run of hasten: all seconds, from loading the job's file on, with a cache that it has to fill."""
    planned = [] if plan is None else [str(plan)]
    command = [sys.executable, "-m", "bench.tuner_planned", job, *planned, "--seed", str(seed)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "HASTEN_CACHE": cache}
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment).stdout
    found = json.loads(told.splitlines()[-1])
    before = found["seconds"] - found["loop_seconds"]
    curve = [(before + seconds, results[pipeline.metric]) for seconds, results in found["evaluations"]]
    value, peak_bytes = found["results"][pipeline.metric], found["peak_bytes"]
    return Whole(seconds=found["seconds"], value=value, curve=curve, peak_bytes=peak_bytes)


def _say(what: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {what}", flush=True)


def _options() -> argparse.Namespace:
    parser = parser_of("pipeline", __doc__)
    names: Sequence[str] = list(PIPELINES)
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="all by default")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of whole runs; {SEEDS} by default")
    options = parser.parse_args()
    if options.seeds < FEWEST_SEEDS:
        parser.error(f"--seeds: fewer than {FEWEST_SEEDS} have no spread, and an hour's run would end without a record")
    return options


if __name__ == "__main__":
    main()
