"""Shuffled batches of data that is in memory: hasten's loader, torch's DataLoader and a gather by hand (goal G4).

    python -m bench.in_memory                  # twenty minutes for each; nothing else may run; writes records
    python -m bench.in_memory --data pictures  # one of the two: rows (1M × 20 float32), pictures (50k × 3×32×32 uint8)
    python -m bench.in_memory --quick          # a minute; shows that it works, and judges nothing

Batches of 256 with their labels. A window is a whole number of epochs, so every loader's start of an epoch is in it.
Arms are not bound to one core and have all threads: a DataLoader's workers need the cores, and a copy of many bytes is
made by several threads in every arm alike. With an accelerator, arms whose data lies there take part.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from bench.arms import Arm, Protocol, run_arms
from bench.in_memory_arms import BATCH, LOADERS, ON_DEVICE, SAMPLES
from bench.judging import conclude, controlled, speed_targets
from bench.options import parser_of
from bench.record import Record, Target

from hasten.measure.paired_timing import Comparison, Window, compare

ARMS = Path(__file__).resolve().with_name("in_memory_arms.py")
BASELINE = "dataloader"

# Fixed before the first run. What of (data, arm) over which other one, at least: None stands for all data.
LEAST = (
    ("rows", "hasten", "dataloader", 25.0),
    (None, "hasten", "by_hand", 0.9),
    (None, "hasten_on_device", "by_hand_on_device", 0.95),
)

EPOCHS = {"rows": 1, "pictures": 5}  # of a window
STARTS, ROUNDS = 12, 3  # where a process's memory lies can be seen in steps this short


def main() -> None:
    options = _options()
    names = [name for name in LOADERS if torch.cuda.is_available() or name not in ON_DEVICE]
    for data in options.data:
        protocol = Protocol(rounds=12, steps=50, warmup_steps=10) if options.quick else full(data)
        _measure(data, names, protocol, None if options.quick else options.records)


def full(data: str) -> Protocol:
    steps = EPOCHS[data] * steps_per_epoch(data)
    return Protocol(starts=STARTS, rounds=ROUNDS, steps=steps, warmup_steps=steps)


def steps_per_epoch(data: str) -> int:
    return -(-SAMPLES[data] // BATCH)


def _measure(data: str, names: Sequence[str], protocol: Protocol, records: Path | None) -> None:
    arms = [Arm(name=name, entry=f"{ARMS}:arm", arguments={"loader": name, "data": data}) for name in names]
    itself = controlled(next(arm for arm in arms if arm.name == "hasten"), protocol)
    measured = run_arms(arms, protocol)
    comparisons = [compare(measured.windows, baseline=BASELINE, challenger=name) for name in names if name != BASELINE]
    targets = judged(data, measured.windows)
    for found in comparisons:
        print(f"{data}, {found.challenger:20} {found.speedup} {_microseconds(found):8.1f} µs a batch")
    record = Record(
        what=f"in-memory-{data}",
        claim=f"Shuffled batches of {BATCH} from {SAMPLES[data]:,} {data} in memory: hasten, DataLoader and by hand",
        command=f"python -m bench.in_memory --data {data}",
        protocol=protocol,
        control=itself,
        comparisons=comparisons,
        measured=measured,
        targets=targets,
        remarks=[
            f"a window is {EPOCHS[data]} whole epochs; by_hand_selected is the fastest gather that could be written, "
            "and like by_hand it has an order that no resumed run could enter in the middle"
        ],
    )
    conclude(record, records)


def judged(data: str, windows: Sequence[Window]) -> list[Target]:
    """The targets for this data, of arms that were measured."""
    return speed_targets(
        windows, [(ours, other, bound) for only, ours, other, bound in LEAST if only in (None, data)], "batches"
    )


def _microseconds(found: Comparison) -> float:
    """The middle window of the challenger, per batch."""
    seconds = sorted(ours.seconds_per_step for _, ours in found.pairs)
    return seconds[len(seconds) // 2] * 1e6


def _options() -> argparse.Namespace:
    parser = parser_of("in_memory", __doc__)
    parser.add_argument("--data", nargs="+", choices=list(SAMPLES), default=list(SAMPLES), help="both by default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
