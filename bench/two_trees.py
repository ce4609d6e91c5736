"""Two checkouts of hasten side by side: is what a change touched as fast as before?

    git worktree add ../before COMMIT
    python -m bench.two_trees ../before             # an hour and a half; nothing else may run; writes records
    python -m bench.two_trees ../before --works save rows
    python -m bench.two_trees ../before --quick     # shows that it works, and judges nothing

Each work is hasten's arm of another benchmark, run from both checkouts in turns with that checkout's own code of the
arm. A work takes what that benchmark takes: the same data, batches and length of a window.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.arms import ROOT, Arm, Protocol, run_arms
from bench.child import load
from bench.judging import conclude, controlled, speed_targets
from bench.options import parser_of
from bench.pictures import enlarge, write_pictures
from bench.record import Record

from bench import in_memory, loading, overhead, starvation
from hasten.measure.paired_timing import compare

BEFORE, AFTER = "before", "after"
LEAST = 0.98  # fixed before the first run: two processes of the same code differ by as much
GIB = 1 << 30
QUICK = Protocol(rounds=12, steps=50, warmup_steps=2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """unit: what a step is, in the plural. arm: FILE.py:function in the folder bench of a checkout. arguments: given a
    folder for the work's files."""

    claim: str
    unit: str
    arm: str
    arguments: Callable[[Path], Mapping[str, Any]]
    protocol: Protocol


def _nothing(folder: Path) -> Mapping[str, Any]:
    return {}


def _pictures(folder: Path) -> dict[str, Any]:
    pictures = write_pictures(folder / "pictures", loading.PICTURES)
    return {"folder": str(pictures), "batch_size": loading.BATCH, "threads": loading.CORES}


def _starved(folder: Path) -> Mapping[str, Any]:
    steps = starvation.FULL.steps * starvation.BATCH
    pictures = write_pictures(folder / "pictures", steps)
    return {"folder": str(pictures), "notes": str(folder / "notes.jsonl"), "threads": loading.CORES}


def _photos(folder: Path) -> Mapping[str, Any]:
    small_photos: Any = load(f"{ROOT}/examples/sample_photos.py:sample_photos")
    os.environ["HASTEN_PHOTOS"] = str(enlarge(small_photos(), folder / "photos"))
    return {"job": f"{ROOT}/bench/pipeline_jobs.py:images", "plan": f"{ROOT}/examples/plans/photos.toml"}


WORKS = {
    "trainer": Work(
        claim="A step of a three-layer network, batches of 32, in hasten's loop",
        unit="steps",
        arm="overhead_arms.py:hasten_train",
        arguments=_nothing,
        protocol=overhead.FULL,
    ),
    "step": Work(
        claim="A step of a three-layer network, batches of 32, by hasten.Step in a loop of the user's own",
        unit="steps",
        arm="overhead_arms.py:hasten_step",
        arguments=_nothing,
        protocol=overhead.FULL,
    ),
    "rows": Work(
        claim="Shuffled batches of 256 from 1,000,000 rows in memory",
        unit="batches",
        arm="in_memory_arms.py:arm",
        arguments=lambda folder: {"loader": "hasten", "data": "rows"},
        protocol=in_memory.full("rows"),
    ),
    "jpeg": Work(
        claim="Batches of 64 random crops of 224 × 224 from JPEG files of 500 × 375",
        unit="batches",
        arm="loading_arms.py:arm",
        arguments=lambda folder: {"loader": "hasten", **_pictures(folder)},
        protocol=loading.FULL,
    ),
    "cached": Work(
        claim="The same batches from a cache of decoded images",
        unit="batches",
        arm="loading_arms.py:arm",
        arguments=lambda folder: {"loader": "hasten_cached", **_pictures(folder)},
        protocol=loading.FULL,
    ),
    "starvation": Work(
        claim="A step of a ResNet-18 that is fed from JPEG files",
        unit="steps",
        arm="starvation_arms.py:from_hasten",
        arguments=_starved,
        protocol=starvation.FULL,
    ),
    "save": Work(
        claim="One save of a training state of 1 GiB",
        unit="saves",
        arm="checkpoint_arms.py:arm",
        arguments=lambda folder: {"kind": "hasten", "folder": str(folder), "bytes": GIB},
        protocol=Protocol(rounds=12, steps=5, warmup_steps=2),
    ),
    "images": Work(
        claim="A step of examples/photos.py by its plan",
        unit="steps",
        arm="before_after_arms.py:example",
        arguments=_photos,
        protocol=Protocol(rounds=12, warmup_steps=8, seconds=3.2),
    ),
}


def main() -> None:
    options = _options()
    before = options.before.resolve()
    for name in options.works:
        with tempfile.TemporaryDirectory(prefix="hasten-two-trees-") as home:
            os.environ["HASTEN_CACHE"] = str(Path(home, "cache"))
            _measure(name, before, Path(home), options)


def _measure(name: str, before: Path, home: Path, options: argparse.Namespace) -> None:
    work = WORKS[name]
    arguments = work.arguments(home)
    arms = [
        Arm(name=which, entry=f"{tree}/bench/{work.arm}", arguments=_within(arguments, tree), tree=tree)
        for which, tree in ((BEFORE, before), (AFTER, ROOT))
    ]
    protocol = QUICK if options.quick else work.protocol
    itself = controlled(arms[1], protocol)
    measured = run_arms(arms, protocol)
    found = compare(measured.windows, baseline=BEFORE, challenger=AFTER)
    print(f"{name}: {found.speedup}", flush=True)
    record = Record(
        what=f"before-and-after-{name}",
        claim=f"{work.claim}: before a change, and after it",
        command=f"python -m bench.two_trees ../before --works {name}",
        protocol=protocol,
        control=itself,
        comparisons=[found],
        measured=measured,
        targets=speed_targets(measured.windows, [(AFTER, BEFORE, LEAST)], work.unit),
        remarks=[f"before is commit {commit_of(before)}, after is {commit_of(ROOT)}"],
    )
    conclude(record, None if options.quick else options.records)


def _within(arguments: Mapping[str, Any], tree: Path) -> dict[str, Any]:
    """A job and its plan are those of the checkout."""
    return {
        name: value.replace(str(ROOT), str(tree)) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


def commit_of(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _options() -> argparse.Namespace:
    parser = parser_of("two_trees", __doc__)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS), help="all by default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
