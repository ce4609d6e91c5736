"""How long a training waits for its data: ResNet-18 on JPEG files, fed by hasten and by torch's DataLoader (goal G3).

    pip install -e ".[bench]"
    python -m bench.starvation            # a quarter of an hour; nothing else may run meanwhile; writes a record
    python -m bench.starvation --quick    # minutes; shows that it works, and judges nothing

Pictures of 500 × 375 (bench/pictures.py), crops of 160 × 160, batches of 32, bfloat16 and channels last. A window is
one epoch. On a processor the loader takes its time from the same cores as the training, so beside the share of waiting
stands what a step takes in all, against the same training on a few tensors that are in memory.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from bench.arms import Arm, Protocol, run_arms
from bench.judging import conclude, controlled, median_interval
from bench.options import parser_of
from bench.pictures import write_pictures
from bench.record import Record, Target
from bench.starvation_arms import BATCH

from hasten.facts.machine import read_machine
from hasten.measure.paired_timing import compare

ARMS = Path(__file__).resolve().with_name("starvation_arms.py")
CORES = read_machine().cores
BASELINE, OURS = "from memory", "hasten"

# Fixed before the first run: of a window's seconds.
MOST_WAITING_ON_CPU, MOST_WAITING_ON_GPU = 0.05, 0.02

STEPS = 640 // BATCH if not torch.cuda.is_available() else 12800 // BATCH
FULL = Protocol(rounds=12, steps=STEPS, warmup_steps=STEPS)
QUICK = Protocol(rounds=12, steps=6, warmup_steps=2)  # a step takes half a second on two cores


def main() -> None:
    options = parser_of("starvation", __doc__).parse_args()
    protocol = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as home:
        pictures = write_pictures(Path(home, "pictures"), protocol.steps * BATCH)
        itself = controlled(_arms(pictures, Path(home, "control"))[0], protocol)
        notes, arms = Path(home, "notes"), _arms(pictures, Path(home, "notes"))
        arms = arms[:3] if options.quick else arms
        measured = run_arms(arms, protocol)
        shares = shares_of_waiting(notes.read_text(encoding="utf-8"))
    names = [arm.name for arm in arms if arm.name != BASELINE]
    comparisons = [compare(measured.windows, baseline=BASELINE, challenger=name) for name in names]
    targets = judged(shares, MOST_WAITING_ON_GPU if torch.cuda.is_available() else MOST_WAITING_ON_CPU)
    for found in comparisons:
        low, value, high = median_interval(shares[found.challenger])
        waits = f"waits {value:6.1%} ({low:.1%} to {high:.1%})"
        print(f"{found.challenger:24} {waits}; speed over {BASELINE}: {found.speedup}")
    record = Record(
        what="starvation",
        claim=f"ResNet-18 on {protocol.steps * BATCH} JPEG files, batches of {BATCH}: the time a training waits",
        command="python -m bench.starvation",
        protocol=protocol,
        control=itself,
        comparisons=comparisons,
        measured=measured,
        targets=targets,
        packages=("pillow", "simplejpeg"),
        findings={"shares_of_waiting": shares},
        remarks=[
            f"{name}: waits {value:.1%} of its time ({low:.1%} to {high:.1%})"
            for name, (low, value, high) in ((name, median_interval(shares[name])) for name in names)
        ],
    )
    conclude(record, None if options.quick else options.records)


def _arms(pictures: Path, notes: Path) -> list[Arm]:
    given = {"folder": str(pictures), "notes": str(notes)}
    workers = sorted({0, 1, 2, 4, CORES})
    return [
        Arm(name=BASELINE, entry=f"{ARMS}:from_memory", arguments=given),
        Arm(name=OURS, entry=f"{ARMS}:from_hasten", arguments={**given, "threads": CORES}),
        *(
            Arm(
                name=f"DataLoader, {count} workers",
                entry=f"{ARMS}:from_dataloader",
                arguments={**given, "workers": count},
            )
            for count in workers
        ),
    ]


def shares_of_waiting(notes: str) -> dict[str, list[float]]:
    """For each arm the share of every window that it waited, its warm-up left out."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in map(json.loads, notes.splitlines()):
        found[line["arm"]].append(line["waited_seconds"] / line["seconds"])
    return {arm: shares[1:] for arm, shares in found.items()}


def judged(shares: Mapping[str, Sequence[float]], most: float) -> list[Target]:
    low, value, high = median_interval(shares[OURS])
    name = f"{OURS}: share of its time that a training waits for data"
    return [Target(name=name, bound=most, at_most=True, low=low, value=value, high=high)]


if __name__ == "__main__":
    main()
