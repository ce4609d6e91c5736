"""The same three jobs by hasten and by what people use today, as each comes and with all that it offers.

    python -m bench.peers                  # hours, in which nothing else may run; writes a record for each job
    python -m bench.peers --only images    # one of them
    python -m bench.peers --quick          # shows that it works, and judges nothing

Each peer has an environment of its own, which is built when it is first needed (peer_environments.py), and is set up by
its own documentation (peer_trainers.py). The plan of hasten is the one that `hasten tune` finds, as in
bench/pipeline.py. Windows of steps are compared in turns, hasten's in the midst of those that it is judged against.
Whole runs, from a few seeds each, tell seconds, results and memory. Hasten begins with an empty cache every time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.arms import Arm, Protocol, run_arms
from bench.child import load
from bench.judging import conclude, controlled, mean_ratio, speed_targets
from bench.options import parser_of
from bench.peer_environments import Environment, built, lines_of
from bench.pictures import enlarge
from bench.pipeline import OURS, PIPELINES, WINDOW_SECONDS, Pipeline, choices_of, ours, tuned
from bench.record import ROOT, Record, Target

from hasten.measure.paired_timing import Window, compare

ARMS = ROOT / "bench" / "peer_arms.py"
TRAINERS = ROOT / "bench" / "peer_trainers.py"
JOBS = {  # as a user of hasten writes them
    "images": (ROOT / "examples" / "photos.py", "job"),
    "text": (ROOT / "examples" / "text.py", "job"),
    "rows": (ROOT / "bench" / "pipeline_jobs.py", "rows"),
}
HAND, HASTEN = "by_hand", "hasten"
PEERS = ("lightning", "accelerate", "transformers")
WORKERS = (0, 2)  # of tuned arms: each is tried

# Fixed before the first run: hasten is no slower than any peer at its best, and at most 5 % slower than a careful hand.
LEAST = {HAND: 0.95} | dict.fromkeys(PEERS, 1.0)

LINES = (
    "Lines of code are those of the training alone, without model and data: a trainer's function in "
    "bench/peer_trainers.py with what it calls there, and the function of hasten's job, without the plan that a search "
    "wrote. A trainer's function serves all three jobs in both ways, as it comes and tuned, and counts steps for the "
    "benchmark: for one job its user writes fewer lines than these. "
    "Tuned trainers are given data as a careful hand keeps it (bench/peer_work.py), whose lines are not counted. "
    "Memory is that of the process that trains, without its loader workers. Seconds are without imports on either "
    "side; those of hasten are from loading the job's file, those of the others begin when the script's data is there"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    search_seconds: int = 240
    seeds: int = 3


FULL, QUICK = Scale(), Scale(search_seconds=30, seeds=1)


def main() -> None:
    options = _options()
    environments = {peer: built(peer, options.work) for peer in options.peers}
    with tempfile.TemporaryDirectory(prefix="hasten-peers-") as home:
        os.environ["HASTEN_CACHE"] = str(Path(home, "cache"))
        if "images" in options.only:
            small_photos: Any = load(f"{ROOT}/examples/sample_photos.py:sample_photos")
            os.environ["HASTEN_PHOTOS"] = str(enlarge(small_photos(), Path(home, "photos")))
        for name in options.only:
            _compare(PIPELINES[name], environments, Path(home, f"{name}.toml"), options)


def _compare(job: Pipeline, environments: Mapping[str, Environment], plan: Path, options: argparse.Namespace) -> None:
    scale = QUICK if options.quick else FULL
    found_plan, seconds = tuned(job.job, plan, scale.search_seconds)
    choices = choices_of(found_plan)
    protocol = Protocol(rounds=12, warmup_steps=job.warmup_steps, seconds=WINDOW_SECONDS)
    hasten = Arm(name=HASTEN, entry=f"{OURS}:example", arguments={"job": job.job, "plan": str(plan)})
    arms = in_order(job.name, environments, hasten)
    with empty_cache(plan.parent):
        itself = controlled(hasten, protocol)
    with empty_cache(plan.parent):  # what the control has filled would hide what it costs to fill
        measured = run_arms(arms, protocol)
    found = [compare(measured.windows, baseline=arms[0].name, challenger=arm.name) for arm in arms[1:]]
    for each in found:
        print(f"{job.name}, {each.challenger:28} {each.speedup}", flush=True)
    fastest = {trainer: fastest_count(measured.windows, trainer) for trainer in (HAND, *environments)}
    wholes = whole_runs(job, environments, fastest, plan, scale.seeds)
    least = [(HASTEN, _named(other, True, count), bound) for other, bound in LEAST.items() for count in WORKERS]
    record = Record(
        what=f"peers-{job.name}",
        claim=f"{job.name}: the same training by a plain loop, by its peers and by hasten",
        command=f"python -m bench.peers --only {job.name}{_besides(environments)}",
        protocol=protocol,
        control=itself,
        comparisons=found,
        measured=measured,
        targets=[*speed_targets(measured.windows, least, "steps"), *whole_targets(wholes)],
        packages=("scikit-learn", "pillow", "torchmetrics"),
        findings={
            "tuning_seconds": seconds,
            "plan": choices,
            "environments": {peer: each.as_table() for peer, each in environments.items()},
            "wholes": wholes,
        },
        tables=wholes_table(job, wholes),
        remarks=[
            LINES,
            "of whole runs, seconds are the middle ones between the least and the most, and targets geometric means "
            "of the ratios from the same seed with Student's 95 % interval",
            f"hasten tune took {seconds:.0f} s",
            f"hasten's plan: {', '.join(choices) or 'nothing'}",
            *(each.sentence for each in environments.values()),
        ],
    )
    conclude(record, None if options.quick else options.records)


def _besides(environments: Mapping[str, Environment]) -> str:
    return "" if set(environments) == set(PEERS) else f" --peers {' '.join(environments)}"


@contextmanager
def empty_cache(home: Path) -> Iterator[None]:
    """For what hasten keeps, below home, as long as this lasts."""
    before = os.environ["HASTEN_CACHE"]
    with tempfile.TemporaryDirectory(prefix="cache-", dir=home) as folder:
        os.environ["HASTEN_CACHE"] = folder
        try:
            yield
        finally:
            os.environ["HASTEN_CACHE"] = before


def in_order(work: str, environments: Mapping[str, Environment], hasten: Arm) -> list[Arm]:
    """First each trainer as it comes. Hasten stands in the midst of the tuned ones,
    between those of the careful hand: a machine changes least between neighbours."""
    pythons = {HAND: None} | {peer: str(environment.python) for peer, environment in environments.items()}

    def arm(trainer: str, at_best: bool, workers: int) -> Arm:
        return Arm(
            name=_named(trainer, at_best, workers),
            entry=f"{ARMS}:windows",
            arguments={"trainer": trainer, "work": work, "tuned": at_best, "workers": workers},
            python=pythons[trainer],
        )

    plain = [arm(trainer, False, 0) for trainer in pythons]
    tuned_arms = [arm(trainer, True, count) for trainer in pythons for count in WORKERS]
    return [*plain, *reversed(tuned_arms[::2]), hasten, *tuned_arms[1::2]]


def _named(trainer: str, at_best: bool, workers: int) -> str:
    return f"{trainer}, tuned, {workers} workers" if at_best else f"{trainer}, as it comes"


# ── whole runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def fastest_count(windows: Sequence[Window], trainer: str) -> int:
    """Of workers: that with which the tuned trainer stands better beside hasten, window by window."""

    def times_slower(count: int) -> float:
        return compare(windows, baseline=_named(trainer, True, count), challenger=HASTEN).speedup.ratio

    return min(WORKERS, key=times_slower)


def whole_runs(
    job: Pipeline, environments: Mapping[str, Environment], fastest: Mapping[str, int], plan: Path, seeds: int
) -> dict[str, list[dict[str, Any]]]:
    """Of every trainer at its best and of hasten, in turns, the order turned round with every seed."""
    trainers = {_named(trainer, True, count): trainer for trainer, count in fastest.items()} | {HASTEN: HASTEN}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in trainers}
    for seed in range(seeds):
        for name in list(trainers)[:: 1 if seed % 2 == 0 else -1]:
            trainer = trainers[name]
            if trainer == HASTEN:
                run = ours(job, job.job, plan, seed)
                told = {"seconds": run.seconds, "value": run.value, "curve": run.curve, "peak_bytes": run.peak_bytes}
            else:
                python = environments[trainer].python if trainer in environments else Path(sys.executable)
                told = _answer(python, trainer, job.name, fastest[trainer], seed)
            found[name].append(told)
            print(f"{job.name}, seed {seed}, {name}: {told['seconds']:.1f} s", flush=True)
    return found


def whole_targets(wholes: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Target]:
    """Of whole runs from the same seeds, what the peers take for each second of hasten."""
    ours, found = [run["seconds"] for run in wholes[HASTEN]], list[Target]()
    for name in (each for each in wholes if each != HASTEN):
        low, value, high = mean_ratio([run["seconds"] for run in wholes[name]], ours)
        what, bound = f"{HASTEN}: seconds of {name} for each one of it, whole runs", LEAST[name.partition(",")[0]]
        found.append(Target(name=what, bound=bound, at_most=False, low=low, value=value, high=high))
    return found


def _answer(python: Path, trainer: str, work: str, workers: int, seed: int) -> dict[str, Any]:
    command = [str(python), "-m", "bench.peer_arms", trainer, work, "--workers", str(workers), "--seed", str(seed)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:  # what a peer leaves behind goes with it
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment)
    return json.loads(told.stdout.splitlines()[-1])


def wholes_table(job: Pipeline, wholes: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Middle seconds, results and memory of whole runs, and the lines that a user writes for the training itself."""
    head = f"| whole runs | seconds | final {job.metric} | peak memory, MiB | lines of code |"
    lines = [head, "|---" * 5 + "|"]
    for name, runs in wholes.items():
        seconds = sorted(run["seconds"] for run in runs)
        values, peaks = ([run[what] for run in runs] for what in ("value", "peak_bytes"))
        trainer = name.partition(",")[0]
        written = lines_of(*JOBS[job.name], called=False) if trainer == HASTEN else lines_of(TRAINERS, trainer)
        lines.append(
            f"| {name} | {seconds[len(seconds) // 2]:.1f} ({seconds[0]:.1f}–{seconds[-1]:.1f}) "
            f"| {sum(values) / len(values):.4f} ({min(values):.4f}–{max(values):.4f}) | {max(peaks) / 2**20:.0f} "
            f"| {written} |"
        )
    return lines


def _options() -> argparse.Namespace:
    parser = parser_of("peers", __doc__)
    names: Sequence[str] = list(PIPELINES)
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="all by default")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="all by default")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers", help="folder of their environments")
    return parser.parse_args()


if __name__ == "__main__":
    main()
