"""The tuner on ten workloads: its plan beside a grid's, its seconds, and what it predicts (goal G9).

    python -m bench.tuner                    # an hour or so, in which nothing else may run; writes a record
    python -m bench.tuner --only digits rows # some of the workloads
    python -m bench.tuner --aa 100           # whether a search keeps what does nothing or slows down (aa_tuner.py)
    python -m bench.tuner --quick            # minutes; shows that it works, and judges nothing

Each workload is tuned as a person would, `hasten tune JOB`. Then the oracle is found (tuner_grid.py), and its plan,
the tuner's and that of random search run side by side on new windows, the oracle's twice, which is the control. At last
the whole planned run is trained, plain and by the tuner's plan, each time with empty caches, and its seconds are held
against those that the tuner had predicted.

What was measured is kept in a folder, --work, as soon as it is known. A bench that is stopped goes on there, and a
record is made of all that the folder holds. Empty it before measuring another state of the code.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.aa_tuner import search_nothing
from bench.options import parser_of
from bench.record import ROOT, keep_to_one_source
from bench.tuner_grid import (
    FINAL_ROUNDS,
    FINALISTS,
    ROUNDS,
    Configuration,
    allowed_values,
    alone,
    best,
    configuration_of,
    fastest,
    grid,
    race,
    raced_of,
    random_search,
    said,
    same_configuration,
    windows_of,
)
from bench.tuner_record import write

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan_file import read_plan
from hasten.facts.trials import Proven, Tried, read_trials, trials_beside
from hasten.measure.paired_timing import LEAST_PAIRS
from hasten.report.display import time_left
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.search.comparison import ComparisonSettings, Entry, compare_arms
from hasten.tuning.search.objective import speedup
from hasten.tuning.search.plan_profile import PlanProfile, profile_plan
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.survey import as_table

OWN = ("rows", "loader", "transfer", "python", "memory", "convolution", "recurrent")
EXAMPLES = ("digits", "photos", "text")
WORKLOADS = {name: f"{ROOT}/examples/{name}.py:job" for name in EXAMPLES}
WORKLOADS |= {name: f"{ROOT}/bench/tuner_jobs.py:{name}" for name in OWN}
CEILING = Preserves.STATISTICS  # as `hasten tune` has it
LONG_WINDOW_SECONDS, LONG_WINDOW_STEPS = 2.0, 50  # a window of the head to head reaches one of them
CHEAP_SECONDS = 25.0  # a planned run up to it is trained three times, a longer one once
SEED = 0  # of random search

ORACLE, AGAIN, TUNED, RANDOM = "oracle", "oracle again", "tuned", "random"
Table = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """seconds: that the tuner is given; most: configurations of a product; singles: values that are raced alone."""

    seconds: int = 60
    most: int = 48
    singles: int = 1000
    finalists: int = FINALISTS
    final_rounds: int = FINAL_ROUNDS
    window_seconds: float = LONG_WINDOW_SECONDS
    repeats: int = 3


FULL, QUICK = Scale(), Scale(seconds=20, most=3, singles=3, finalists=1, final_rounds=3, window_seconds=0.1, repeats=1)
EXPECTED = {"tune": 60, "alone": 45, "product": 90, "finalists": 50, "head_to_head": 75, "realised": 60}  # seconds


class Bench:
    """One workload: what was measured of it lies in a folder, a file for each stage, and is measured only once."""

    def __init__(self, name: str, work: Path, scale: Scale, tell: Callable[[str], None]) -> None:
        self.name, self.job, self.scale, self._tell = name, WORKLOADS[name], scale, tell
        self.folder = work / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._arms = Arms(self.job)

    def stage(self, name: str) -> Table:
        """What a stage has found, now or earlier. Those that it builds upon come first."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            self._tell(f"{self.name}: {name.replace('_', ' ')}")
            began = time.monotonic()
            found = getattr(self, f"_{name}")()
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(found | {"stage_seconds": time.monotonic() - began}), encoding="utf-8")
            unfinished.rename(path)
        return json.loads(path.read_text(encoding="utf-8"))

    @cached_property
    def look(self) -> PlanProfile:
        return profile_plan(self._arms, self.job, CEILING)

    @property
    def tuned(self) -> Configuration:
        return configuration_of(self.stage("tune")["choices"])

    @property
    def oracle(self) -> Configuration:
        return best(map(raced_of, self.stage("finalists")["raced"]))

    # ── the stages ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _tune(self) -> Table:
        """As a person would: another process, which knows nothing of this one."""
        plan = self.folder / "plan.toml"
        for left in self.folder.glob("plan*"):  # of a bench that was stopped: it would go on there
            left.unlink()
        command = [sys.executable, "-m", "hasten", "tune", self.job, "--output", str(plan), "--json"]
        command += ["--seconds", str(self.scale.seconds)]
        began = time.monotonic()
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        seconds = time.monotonic() - began
        records = read_trials(trials_beside(plan))
        tried = [record for record in records if isinstance(record, Tried) and record.verdict != "skipped"]
        failed = [record.choice for record in records if isinstance(record, Proven) and not record.passes]
        answer = json.loads(told.stdout)
        return {
            "seconds": seconds,
            "choices": [as_table(each.choice) for each in read_plan(plan).choices],
            "harmful": [as_table(choice) for choice in failed],
            "compiled": any(each.choice.technique == "compile" for each in tried),
            "trials": len(tried),
            **{key: answer[key] for key in ("sentence", "total", "speedup", "rejected")},
        }

    def _values(self) -> tuple[list[list[Choice]], list[str]]:
        """What is proposed for the plain job, and what more once it has loader workers."""
        proposed = list(self.look.proposed)
        workers = [choice for choice in proposed if choice.technique == "loader_workers" and choice.value != 0]
        if workers:
            known = {choice.technique for choice in proposed}
            more = profile_plan(self._arms, self.job, CEILING, workers[:1]).proposed
            proposed += [choice for choice in more if choice.technique not in known]
        return allowed_values(proposed, CEILING, configuration_of(self.stage("tune")["harmful"]))

    def _alone(self) -> Table:
        values, left = self._values()
        singles = alone(values)[: self.scale.singles]
        raced, windows = race(self._arms, self.look, singles, ROUNDS, self._tell)
        return {
            "values": [[as_table(choice) for choice in many] for many in values],
            "left": left,
            "raced": [each.as_table() for each in raced],
            "windows": windows,
            "surveyed": {"steps": self.look.length.steps, "step_seconds": self.look.step_seconds},
        }

    def _product(self) -> Table:
        found = self.stage("alone")
        values = [list(configuration_of(many)) for many in found["values"]]
        singles = list(map(raced_of, found["raced"]))
        configurations, left = grid(values, singles, self.scale.most)
        raced, windows = race(self._arms, self.look, configurations, ROUNDS, self._tell)
        return {"raced": [each.as_table() for each in raced], "left": left, "windows": windows}

    def _finalists(self) -> Table:
        raced = [raced_of(each) for stage in ("product", "alone") for each in self.stage(stage)["raced"]]
        chosen = fastest(raced, self.scale.finalists)
        again, windows = race(self._arms, self.look, chosen, self.scale.final_rounds, self._tell)
        return {"raced": [each.as_table() for each in again], "windows": windows}

    def _head_to_head(self) -> Table:
        """On windows of their own. A plan that is the oracle's is the oracle's second arm, and so its own control."""
        grid_of_all = list(map(raced_of, self.stage("product")["raced"]))
        drawn, seen = random_search(grid_of_all, self.stage("tune")["seconds"], SEED)
        arms, names = {AGAIN: self.oracle}, dict[str, str]()
        for name, plan in ((TUNED, self.tuned), (RANDOM, drawn)):
            names[name] = next((known for known, other in arms.items() if same_configuration(plan, other)), name)
            arms.setdefault(names[name], plan)
        look, oracle = self.look, Entry(name=ORACLE, plan=plan_of(self.oracle))
        steps = self._steps_of_a_window()
        pace = ComparisonSettings(steps=steps, repeats=LEAST_PAIRS, evaluations=look.evaluations_at_the_end, checks=())
        entries = [Entry(name=name, plan=plan_of(plan), stays=True) for name, plan in arms.items()]
        outcome = compare_arms(self._arms, oracle, entries, pace, look.length, lambda *_: None)
        if outcome.failed:
            raise next(iter(outcome.failed.values()))
        ratios = {name: asdict(speedup(outcome.base, seen, look.length)) for name, seen in outcome.measured.items()}
        return {
            "oracle": [as_table(choice) for choice in self.oracle],
            "random": [as_table(choice) for choice in drawn],
            "random_saw": seen,
            "grid": len(grid_of_all),
            "control": ratios[AGAIN],
            "tuned_over_oracle": ratios[names[TUNED]],
            "random_over_oracle": ratios[names[RANDOM]],
            "tuned_is_the_oracle": names[TUNED] == AGAIN,
            "window_steps": steps,
            "window_is_short": steps < LONG_WINDOW_STEPS
            and min(window.seconds for window in outcome.base.windows) < LONG_WINDOW_SECONDS,
            "windows": windows_of(outcome),
        }

    def _steps_of_a_window(self) -> int:
        """Two seconds of the fastest plan or fifty steps, whichever is less; at most a third of the planned run."""
        quickest = max([1.0, *(each["ratio"] for each in self.stage("finalists")["raced"])])
        wanted = math.ceil(self.scale.window_seconds * quickest / self.look.step_seconds)
        return max(1, min(wanted, LONG_WINDOW_STEPS, self.look.length.steps // 3))

    def _realised(self) -> Table:
        """The whole planned run, plain and by the plan in turns."""
        tuned = self.stage("tune")
        predicted = tuned["total"]
        if predicted is None:
            return {"predicted": None, "plain": [], "planned": []}
        repeats = self.scale.repeats if predicted["baseline_seconds"] <= CHEAP_SECONDS else 1
        plain, planned, plan = list[Table](), list[Table](), str(self.folder / "plan.toml")
        for number in range(repeats):
            for arguments, runs in (([], plain), ([plan], planned))[:: 1 if number % 2 == 0 else -1]:
                runs.append(self._whole_run(arguments))
                self._tell(f"{self.name}: a whole run took {runs[-1]['seconds']:.1f} s")
        return {"predicted": predicted, "plain": plain, "planned": planned}

    def _whole_run(self, arguments: Sequence[str]) -> Table:
        command = [sys.executable, "-m", "bench.tuner_planned", self.job, *arguments]
        with tempfile.TemporaryDirectory() as cache:
            began = time.monotonic()
            environment = {**os.environ, "HASTEN_CACHE": cache}
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
            wall = time.monotonic() - began
        return json.loads(told.stdout.splitlines()[-1]) | {"wall_seconds": wall}


class Skipped:
    """Says what is done, and about how long all of it still takes: by what the stages so far took, of what is
    expected of each."""

    def __init__(self, names: Sequence[str]) -> None:
        self._began, self._whole, self._done = time.monotonic(), len(names) * sum(EXPECTED.values()), 0.0

    def done(self, stage: str, seconds_now: float) -> None:
        if seconds_now < 0.5:  # it was there already, and says nothing of how fast this goes
            self._whole -= EXPECTED[stage]
        else:
            self._done += EXPECTED[stage]

    def __call__(self, what: str) -> None:
        spent = time.monotonic() - self._began
        rate = spent / self._done if self._done else 1.0
        left = time_left(max(self._whole - self._done, 0) * rate)
        print(f"[{spent / 60:5.1f} min, about {left} left] {what}", flush=True)


def main() -> None:
    options = _options()
    if not options.quick:
        keep_to_one_source(options.work)
    if options.aa is not None:
        search_nothing(options.work, options.aa, None if options.quick else options.records)
        return
    names, scale = options.only, QUICK if options.quick else FULL
    work = Path(tempfile.mkdtemp(prefix="hasten-bench-")) if options.quick else options.work
    left = Skipped(names)
    for name in names:
        bench = Bench(name, work, scale, left)
        for stage in EXPECTED:
            began = time.monotonic()
            bench.stage(stage)
            left.done(stage, time.monotonic() - began)
        ratio, oracle = bench.stage("head_to_head")["tuned_over_oracle"], said(bench.oracle)
        left(f"{name}: {said(bench.tuned)} is {ratio['ratio']:.3f} of the oracle, {oracle}")
    if options.quick:
        shutil.rmtree(work)
        print("--quick judges nothing: no record was written", flush=True)
        return
    keep_to_one_source(work)  # hours have passed
    print(f"written: {write(work, list(WORKLOADS), EXAMPLES, options.records)}", flush=True)


def _options() -> argparse.Namespace:
    parser = parser_of("tuner", __doc__)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), help="all by default")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench-tuner", help="folder of what was measured")
    parser.add_argument("--aa", type=int, metavar="N", help="search N times among choices that do nothing, instead")
    return parser.parse_args()


if __name__ == "__main__":
    main()
