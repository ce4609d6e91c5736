"""Saving a training state of 1 GiB: hasten's checkpoint, torch.save, torch.distributed.checkpoint, safetensors.

    pip install -e ".[bench]"
    python -m bench.checkpoint            # twenty minutes; nothing else may run; writes a record
    python -m bench.checkpoint --quick    # a minute; shows that it works, and judges nothing

A step is one save. hasten's is whole or not at all after a power cut and has a digest of every byte; of the others,
those called "forced" are at least on the disk. Each save finds a quiet disk and nothing that waits for it, as in a run
that saves every few minutes; without that, the disk would hold up torch.save too. A run of hasten's reads back what it
has saved, which is an arm of its own. One more writes as many bytes and nothing else: the least that a durable save
takes here.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.arms import Arm, Protocol, run_arms
from bench.checkpoint_arms import GIB, KINDS
from bench.judging import conclude, controlled, middle_seconds
from bench.options import parser_of
from bench.record import Record, Target

from hasten.measure.paired_timing import Window, compare

ARMS = Path(__file__).resolve().with_name("checkpoint_arms.py")
COMMAND = ("python", "-m", "bench.checkpoint")
BASELINE, OURS = "torch.save", "hasten"
FAST = {"torch.save": 8, "safetensors": 14}  # saves that take two seconds where fewer of others do

# Fixed before the first run: hasten's seconds for each one of the other's, at most.
MOST = (("torch.save", 1.10), ("torch.save, forced", 1.10))


def main() -> None:
    parser = parser_of("checkpoint", __doc__)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to write to; the system's temporary one")
    parser.add_argument("--rounds", type=int, default=12, help="more of them decide more closely")
    others = [name for name in KINDS if name not in (BASELINE, OURS)]
    parser.add_argument("--beside", nargs="*", choices=others, default=others, help="other arms; all by default")
    options = parser.parse_args()
    size, steps = (GIB // 64, 50) if options.quick else (GIB, 5)
    protocol = Protocol(rounds=options.rounds, steps=steps, warmup_steps=2)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        arms = [
            Arm(
                name=name,
                entry=f"{ARMS}:arm",
                arguments={"kind": name, "folder": folder, "bytes": size},
                steps=None if options.quick else FAST.get(name),
            )
            for name in KINDS
            if name in (BASELINE, OURS, *options.beside)
        ]
        itself = controlled(next(arm for arm in arms if arm.name == OURS), protocol)
        measured = run_arms(arms, protocol)
    comparisons = [
        compare(measured.windows, baseline=BASELINE, challenger=arm.name) for arm in arms if arm.name != BASELINE
    ]
    for found in comparisons:
        print(f"{found.challenger:30} {found.speedup}")
    seconds = {arm.name: middle_seconds(measured.windows, arm.name) for arm in arms}
    record = Record(
        what="checkpoint",
        claim=f"One save of a training state of {size / GIB:.3g} GiB",
        command=shlex.join([*COMMAND, "--rounds", str(options.rounds), "--beside", *options.beside]),
        protocol=protocol,
        control=itself,
        comparisons=comparisons,
        measured=measured,
        targets=judged(measured.windows),
        packages=("safetensors",),
        findings={"seconds": seconds},
        remarks=[
            "the middle one of the saves: "
            + ", ".join(f"{name} {each:.3f} s ({size / each / 1e9:.2f} GB/s)" for name, each in seconds.items()),
            "where hasten, torch.distributed.checkpoint and the arms called forced return, the data is on the disk; "
            "torch.save and safetensors leave it in the system's cache, and would lose it in a power cut",
        ],
    )
    conclude(record, None if options.quick else options.records)


def judged(windows: Sequence[Window]) -> list[Target]:
    """Ratios of seconds: above 1, hasten takes longer."""
    found: list[Target] = []
    measured = {window.arm for window in windows}
    for other, bound in MOST:
        if other not in measured:
            continue
        ratio = compare(windows, baseline=OURS, challenger=other).speedup
        name = f"{OURS}: seconds for each one of {other}"
        found.append(Target(name=name, bound=bound, at_most=True, low=ratio.low, value=ratio.ratio, high=ratio.high))
    return found


if __name__ == "__main__":
    main()
