"""JPEG files to batches of random crops: hasten, Pillow under torch's DataLoader, webdataset and litdata (goal G2).

    pip install -e ".[bench]"
    python -m bench.loading            # half an hour; nothing else may run meanwhile; writes a record
    python -m bench.loading --quick    # minutes; shows that it works, and judges nothing

4,096 pictures of 500 × 375 (bench/pictures.py), batches of 64, 224 × 224. A window is one whole epoch, so nothing that
was read ahead is carried into it or left behind. The files are in the system's page cache: what is measured is the
work of the processor, not the disk. Peers that are not installed are left out, and that is said.

Every arm has all cores. The two ceilings decode the same files on all of them and deliver nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from bench.arms import Arm, Protocol, run_arms
from bench.judging import conclude, controlled, middle_seconds, speed_targets
from bench.options import parser_of
from bench.pictures import write_pictures
from bench.record import Record, Target

from hasten.facts.machine import read_machine
from hasten.measure.paired_timing import Window, compare

ARMS = Path(__file__).resolve().with_name("loading_arms.py")
PICTURES, BATCH = 4096, 64
BASELINE = "Pillow, no workers"
CORES = read_machine().cores
OURS, CACHED = f"hasten, {CORES} threads", f"hasten from its cache, {CORES} threads"
CEILING, EXACT_CEILING = "decode only, fastest", "decode only, Pillow's pixels"
TUNED = "the best tuned DataLoader"

# Fixed before the first run: (arm, over which other one, at least).
LEAST_ON_CPU = ((OURS, BASELINE, 5.0), (OURS, CEILING, 0.85), (CACHED, BASELINE, 15.0))
LEAST_ON_GPU = ((OURS, BASELINE, 20.0), (OURS, TUNED, 1.3))

FULL = Protocol(rounds=12, steps=PICTURES // BATCH, warmup_steps=PICTURES // BATCH)
QUICK_PICTURES, QUICK_BATCH = 256, 4
QUICK = Protocol(rounds=12, steps=QUICK_PICTURES // QUICK_BATCH, warmup_steps=QUICK_PICTURES // QUICK_BATCH)


def main() -> None:
    options = parser_of("loading", __doc__).parse_args()
    protocol, pictures, batch_size = (QUICK, QUICK_PICTURES, QUICK_BATCH) if options.quick else (FULL, PICTURES, BATCH)
    with tempfile.TemporaryDirectory() as home:
        arms = _arms(write_pictures(Path(home, "pictures"), pictures), batch_size)
        # The control is of the arm that the claims are about.
        itself = controlled(next(arm for arm in arms if arm.name == OURS), protocol)
        measured = run_arms(arms, protocol)
    names = [arm.name for arm in arms if arm.name != BASELINE]
    comparisons = [compare(measured.windows, baseline=BASELINE, challenger=name) for name in names]
    targets = judged(measured.windows, LEAST_ON_GPU if torch.cuda.is_available() else LEAST_ON_CPU)
    for name in (BASELINE, *names):
        print(f"{name:36} {batch_size / middle_seconds(measured.windows, name):8.0f} pictures a second")
    record = Record(
        what="jpeg-loading",
        claim=f"{PICTURES} JPEG files of 500 × 375 to batches of {BATCH} random crops of 224 × 224, normalised",
        command="python -m bench.loading",
        protocol=protocol,
        control=itself,
        comparisons=comparisons,
        measured=measured,
        targets=targets,
        packages=("pillow", "simplejpeg", *(name for name in ("webdataset", "litdata") if find_spec(name))),
        findings={
            "pictures_per_second": {
                name: batch_size / middle_seconds(measured.windows, name) for name in (BASELINE, *names)
            }
        },
        remarks=[
            "an arm writes its files while it is built: webdataset its shards, litdata its chunks, hasten its cache; "
            "all files are in the system's page cache",
            "Pillow stands for torchvision's ImageFolder, RandomResizedCrop, RandomHorizontalFlip, ToTensor and "
            "Normalize, whose steps it repeats",
        ],
    )
    conclude(record, None if options.quick else options.records)


def _arms(pictures: Path, batch_size: int) -> list[Arm]:
    given = {"folder": str(pictures), "batch_size": batch_size}

    def loader(name: str, which: str, **arguments: int) -> Arm:
        return Arm(name=name, entry=f"{ARMS}:arm", arguments={"loader": which, **given, **arguments})

    def ceiling(name: str, exact: bool) -> Arm:
        return Arm(name=name, entry=f"{ARMS}:decode_only", arguments={**given, "threads": CORES, "exact": exact})

    arms = [loader(BASELINE, "dataloader", workers=0)]
    arms += [loader(f"Pillow, {workers} workers", "dataloader", workers=workers) for workers in _and_all(1, 2, 4)]
    for peer in ("webdataset", "litdata"):
        if find_spec(peer) is None:
            print(f"{peer} is not installed: it takes no part")
            continue
        arms += [loader(f"{peer}, {workers} workers", peer, workers=workers) for workers in (0, CORES)]
    arms += [loader(f"hasten, {threads} threads", "hasten", threads=threads) for threads in _and_all(1, 2, 3)]
    arms += [loader(CACHED, "hasten_cached", threads=CORES)]
    return [*arms, ceiling(CEILING, exact=False), ceiling(EXACT_CEILING, exact=True)]


def _and_all(*some: int) -> list[int]:
    return sorted({*some, CORES})


def judged(windows: Sequence[Window], least: Sequence[tuple[str, str, float]]) -> list[Target]:
    tuned = sorted({window.arm for window in windows if window.arm.startswith("Pillow")} - {BASELINE})
    best = min(tuned, key=lambda name: middle_seconds(windows, name), default="")
    named = [(ours, best if other == TUNED else other, bound) for ours, other, bound in least]
    return speed_targets(windows, named, "pictures")


if __name__ == "__main__":
    main()
