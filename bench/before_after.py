"""What a hand-written plan makes of the example jobs: their speed side by side, and their quality over seeds.

    python -m bench.before_after                  # an hour, in which nothing else may run; writes records
    python -m bench.before_after --jobs digits    # one job
    python -m bench.before_after --quick          # shows that it works, and judges nothing

Speed is compared by windows of optimizer steps in turns. Quality is that of whole trainings, plain and planned, with
the same seeds: the mean difference over seeds with its 95 % interval (Student's t).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from bench.arms import Arm, Protocol, control, refuse_noise, run_arms
from bench.judging import mean_interval
from bench.options import parser_of
from bench.record import ROOT, Record, Target, write_record

from hasten.measure.paired_timing import compare

ARMS = Path(__file__).resolve().with_name("before_after_arms.py")
BASELINE, PLANNED = "plain fp32", "planned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    name: str
    metric: str
    at_least: float  # times faster; fixed before the first run
    steps: int  # of a window: at least two seconds on either side
    seeds: int
    starts: int = 1  # of every arm; more where two processes of the same code differ by more than their windows do

    @property
    def job(self) -> str:
        return f"{ROOT}/examples/{self.name}.py:job"

    @property
    def plan(self) -> str:
        return f"{ROOT}/examples/plans/{self.name}.toml"


EXAMPLES = {
    "digits": Example(name="digits", metric="accuracy", at_least=2.0, steps=50, seeds=5),
    "text": Example(name="text", metric="loss", at_least=2.0, steps=25, seeds=8),
    "photos": Example(name="photos", metric="accuracy", at_least=1.0, steps=40, seeds=3, starts=12),
}


def main() -> None:
    options = _options()
    for name in options.jobs:
        example = EXAMPLES[name]
        if options.quick:
            _compare(example, Protocol(rounds=12, steps=50, warmup_steps=2), None)
            continue
        rounds = 12 if example.starts == 1 else 3
        protocol = Protocol(starts=example.starts, rounds=rounds, steps=example.steps, warmup_steps=10)
        _compare(example, protocol, options.records)


def _compare(example: Example, protocol: Protocol, records: Path | None) -> None:
    entry = f"{ARMS}:example"
    plain = Arm(name=BASELINE, entry=entry, arguments={"job": example.job, "plan": None})
    planned = Arm(name=PLANNED, entry=entry, arguments={"job": example.job, "plan": example.plan})
    itself = control(plain, protocol)
    print(f"{example.name}, control: {itself.speedup}", flush=True)
    if records is not None:
        refuse_noise(itself)
    measured = run_arms([plain, planned], protocol)
    found = compare(measured.windows, baseline=BASELINE, challenger=PLANNED)
    print(f"{example.name}, planned: {found.speedup}", flush=True)
    if records is None:
        return
    quality = _quality(example, range(example.seeds))
    print(f"{example.name}, {quality['sentence']}", flush=True)
    ratio = found.speedup
    record = Record(
        what=f"{example.name}-with-a-plan",
        claim=f"examples/{example.name}.py, plain float32 against its hand-written plan: speed and {example.metric}",
        command=f"python -m bench.before_after --jobs {example.name}",
        protocol=protocol,
        control=itself,
        comparisons=[found],
        measured=measured,
        targets=[
            Target(
                name="times faster than plain float32",
                bound=example.at_least,
                at_most=False,
                low=ratio.low,
                value=ratio.ratio,
                high=ratio.high,
            )
        ],
        findings={"quality": quality},
        remarks=[str(quality["sentence"])],
    )
    print(f"written: {write_record(record, records)}", flush=True)


def _quality(example: Example, seeds: Sequence[int]) -> Mapping[str, object]:
    """Whole trainings with the same seeds, plain and planned."""
    plain = [_trained(example, seed, None) for seed in seeds]
    planned = [_trained(example, seed, example.plan) for seed in seeds]
    differences = [after - before for before, after in zip(plain, planned, strict=True)]
    low, middle, high = mean_interval(differences)
    sentence = (
        f"{example.metric} over {len(seeds)} seeds: plain {mean(plain):.4f} (from {min(plain):.4f} to "
        f"{max(plain):.4f}), planned {mean(planned):.4f} (from {min(planned):.4f} to {max(planned):.4f}); mean "
        f"difference {middle:+.4f} ({low:+.4f} to {high:+.4f})"
    )
    return {
        "metric": example.metric,
        "seeds": list(seeds),
        BASELINE: plain,
        PLANNED: planned,
        "mean_difference": middle,
        "low": low,
        "high": high,
        "differs": not low <= 0 <= high,
        "sentence": sentence,
    }


def _trained(example: Example, seed: int, plan: str | None) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "hasten", "train", example.job, "--seed", str(seed), "--run-dir", str(run)]
        subprocess.run([*command, *(["--plan", plan] if plan else [])], check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return float(lines[-1]["results"][example.metric])


def _options() -> argparse.Namespace:
    parser = parser_of("before_after", __doc__)
    parser.add_argument("--jobs", nargs="+", choices=tuple(EXAMPLES), default=list(EXAMPLES), help="all by default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
