"""Whether `hasten doctor` names a planted fault first, and whether its bound holds what mending it gained.

    pip install -e ".[bench]"
    python -m bench.planted            # half an hour; nothing else may run meanwhile; writes a record
    python -m bench.planted --quick    # minutes; shows that it works, and judges nothing

Each job is healthy but for one fault (bench/planted_jobs.py). The doctor looks at it in a process of its own. Then the
job with its fault and the job without it are trained in turn, and what a sample costs is compared. A bound is an upper
one, so it holds where the measured gain is not above it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.arms import Arm, Protocol, run_arms
from bench.options import parser_of
from bench.planted_jobs import ALL, Planted
from bench.record import PACKAGES, ROOT, Target, environment, head, target_table, write_folder

from hasten.facts.machine import read_machine
from hasten.measure.paired_timing import Window, compare

ARMS = Path(__file__).resolve().with_name("planted_arms.py")
# Processes of the same code differ here, some of them by half, so every pair is of two that were started anew.
FULL = Protocol(starts=12, rounds=2, steps=50, warmup_steps=10)
QUICK = Protocol(rounds=12, steps=50, warmup_steps=5)
SECONDS_OF_A_WINDOW = 0.7


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """most_gain: the bound of the first finding, None where nothing bounds it; gain, low, high: measured after mending,
    for a sample. growth: bytes a step that the job with its fault holds more each time."""

    name: str
    planted: str
    found: tuple[str, ...]
    place: str
    most_gain: float | None
    gain: float
    low: float
    high: float
    growth: int | None

    @property
    def is_first(self) -> bool:
        return self.found[:1] == (self.planted,)

    @property
    def holds(self) -> bool:
        return self.is_first and self.most_gain is not None and self.gain <= self.most_gain


def main() -> None:
    parser = parser_of("planted", __doc__)
    parser.add_argument(
        "--only", nargs="*", choices=[each.name for each in ALL], default=[], help="of these jobs alone"
    )
    options = parser.parse_args()
    protocol = QUICK if options.quick else FULL
    chosen = [each for each in ALL if not options.only or each.name in options.only]
    outcomes, windows = list[Outcome](), list[tuple[str, Window]]()
    for each in chosen:
        outcome, measured = looked_at(each, protocol)
        outcomes.append(outcome)
        windows += [(each.name, window) for window in measured]
        print(json.dumps(asdict(outcome)), flush=True)
    targets = judged(outcomes)
    for target in targets:
        print(f"{target.name}: {target.value:.4g} ({target.low:.4g} to {target.high:.4g}), {target.outcome}")
    if options.quick:
        print("--quick judges nothing: no record was written")
        return
    _write(outcomes, windows, targets, protocol, options.records)


def looked_at(planted: Planted, protocol: Protocol) -> tuple[Outcome, Sequence[Window]]:
    told = said(planted.name)
    steps = max(protocol.steps, round(SECONDS_OF_A_WINDOW / planted.step_seconds))
    arms = [
        Arm(name=name, entry=f"{ARMS}:planted", arguments={"name": planted.name, "mended": mended}, steps=steps)
        for name, mended in (("faulty", False), ("mended", True))
    ]
    windows = run_arms(arms, protocol).windows
    speedup = compare(windows, baseline="faulty", challenger="mended").speedup
    more = planted.samples_mended / planted.samples  # of a step: a larger batch has more of them
    findings = told["findings"]
    return Outcome(
        name=planted.name,
        planted=planted.code,
        found=tuple(each["code"] for each in findings),
        place=findings[0]["place"] if findings else "",
        most_gain=findings[0]["most_gain"] if findings else None,
        gain=speedup.ratio * more,
        low=speedup.low * more,
        high=speedup.high * more,
        growth=told["growth"],
    ), windows


def said(name: str) -> dict[str, Any]:
    """By a look at the job, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "bench.planted_arms", name],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout.splitlines()[-1])


def judged(outcomes: Sequence[Outcome]) -> list[Target]:
    count = len(outcomes)
    first = float(sum(each.is_first for each in outcomes))
    holds = float(sum(each.holds for each in outcomes))
    return [
        _counted(f"of {count} planted faults: named first", first, count),
        _counted(f"of {count} planted faults: named first, with a bound that holds the gain", holds, count),
    ]


def _counted(name: str, number: float, of: int) -> Target:
    return Target(name=name, bound=float(of), at_most=False, low=number, value=number, high=number)


def _write(
    outcomes: Sequence[Outcome],
    windows: Sequence[tuple[str, Window]],
    targets: Sequence[Target],
    protocol: Protocol,
    records: Path,
) -> None:
    machine = read_machine()
    surroundings = environment(machine, PACKAGES)
    command = "python -m bench.planted"
    claim = "Whether a planted fault is the doctor's first finding, and whether its bound holds what mending it gains"
    page = [
        *head(claim, machine, surroundings, [f"{protocol.pairs} pairs of processes that were started anew"], command),
        *target_table(targets),
        "",
        "| job | planted | found | where | bound | measured gain |",
        "|---|---|---|---|---|---|",
        *(
            f"| {each.name} | {each.planted} | {', '.join(each.found)} | {each.place} | {_times(each.most_gain)} "
            f"| {each.gain:.3g} ({each.low:.3g} to {each.high:.3g}) |"
            for each in outcomes
        ),
        "",
    ]
    found = {"claim": claim, "command": command, "protocol": asdict(protocol)}
    found |= {"targets": [asdict(each) | {"outcome": each.outcome} for each in targets]}
    found |= {"outcomes": [asdict(each) for each in outcomes]}
    lines = [{"job": name, **asdict(window)} for name, window in windows]
    print(
        f"written: {write_folder('planted-faults', records, machine, surroundings, found, lines, chr(10).join(page))}"
    )


def _times(gain: float | None) -> str:
    return "none" if gain is None else f"at most {gain:.3g}"


if __name__ == "__main__":
    main()
