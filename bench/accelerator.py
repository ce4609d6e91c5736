"""Large models on an accelerator: strict float32, a careful hand and hasten by a plan (goals G1, G3, G6, G7).

    python -m bench.accelerator                  # half an hour, in which nothing else may run; writes records
    python -m bench.accelerator --only vit-h     # resnet-50, gpt-2, vit-h, small-pictures
    python -m bench.accelerator --quick          # a quarter of each batch; shows that it works, and judges nothing

ResNet-50 takes pictures of 224 pixels from the device's memory and from JPEG files, GPT-2 of 124M parameters texts of
1024 tokens, ViT-H/14 pictures of 224, and a small residual network 50,176 pictures of 32 × 32 that lie on the device.
Time is compared by windows of optimizer steps in turns; memory is the most that torch has held on the device.

The control is a second process of the same plan, which takes its turns among the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench.accelerator_arms import here, read_notes
from bench.accelerator_works import WORKS, Work
from bench.arms import Arm, Measured, Protocol, run_arms
from bench.judging import conclude, median_interval, middle_seconds, speed_targets
from bench.options import parser_of
from bench.pictures import write_pictures
from bench.record import Record, Target

from hasten.facts.machine import read_machine
from hasten.measure.matmul_rate import MatrixRate, measure_matrix_rate
from hasten.measure.paired_timing import compare

ARMS = Path(__file__).resolve().with_name("accelerator_arms.py")
STRICT, TUNED, TRAINER = "strict float32, by hand", "tuned, by hand", "transformers' trainer, as it comes"
HASTEN, AGAIN, LOADED = "hasten", "hasten again", "hasten, from JPEG files"
FILES, NAMES = 1280, 10  # files, and names of each: an epoch is as long as a window
WINDOW_SECONDS = 2.4
QUARTER, HALF = 4, 2  # of a batch: what a quick run takes, and what a plan lets through the model at once

Notes = Mapping[str, Sequence[Mapping[str, Any]]]
NARROW = {"precision": "bf16", "fused_optimizer": "fused"}
CONVOLUTIONS = {"channels_last": True, "cudnn_autotune": True, "compile": "default"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """arms: the first is the baseline; hasten's control comes beside them. speeds: of hasten, least times as fast as
    another arm. rate: least units a second. memory: most bytes for each one of strict float32. waiting: most
    of the time that the arm with files waits. share: least of the measured matrix rate. All fixed before the run."""

    plan: Mapping[str, Any]
    arms: Sequence[str]
    speeds: Mapping[str, float]
    rate: float | None = None
    memory: float | None = None
    waiting: float | None = None
    share: float | None = None
    split: bool = False  # whether batches go through the model in halves


CASES = {
    "vit-h": Case(
        plan={**NARROW, "compile": "default"},
        split=True,
        arms=(STRICT, HASTEN),
        speeds={STRICT: 6.0},
        memory=0.45,
    ),
    "resnet-50": Case(
        plan={**NARROW, **CONVOLUTIONS},
        arms=(STRICT, TUNED, HASTEN, LOADED),
        speeds={STRICT: 3.3, TUNED: 0.95},
        rate=4000,
        waiting=0.02,
    ),
    "gpt-2": Case(
        plan={**NARROW, "compile": "default"},
        arms=(TRAINER, HASTEN),
        speeds={TRAINER: 2.5},
        share=0.5,
    ),
    "small-pictures": Case(
        plan={**NARROW, **CONVOLUTIONS},
        arms=(TUNED, HASTEN),
        speeds={TUNED: 0.95},
    ),
}


def main() -> None:
    parser = parser_of("accelerator", __doc__)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), help="all by default")
    options = parser.parse_args()
    for name in options.only:
        with tempfile.TemporaryDirectory() as home:
            _measure(name, Path(home), options.quick, options.records)


def _measure(name: str, home: Path, quick: bool, records: Path) -> None:
    case, work = CASES[name], WORKS[name]
    protocol = Protocol(rounds=1 if quick else 12, warmup_steps=5, together=True, seconds=WINDOW_SECONDS)
    matrices = None if case.share is None else measure_matrix_rate(torch.bfloat16, here())
    arms = _arms(name, case, work, home, quick)
    measured, notes = run_arms(arms, protocol), read_notes(home / "notes")
    if quick:
        for arm in arms:
            print(
                f"{arm.name}: a step of a small batch in {middle_seconds(measured.windows, arm.name):.4f} s", flush=True
            )
        print("--quick judges nothing: no record was written", flush=True)
        return
    rates = rates_table(work, measured, notes)
    print("\n".join(rates), flush=True)
    record = Record(
        what=name,
        claim=f"{name}, batches of {work.batch_size}, on an accelerator: {'; '.join(case.arms)}",
        command=f"python -m bench.accelerator --only {name}",
        protocol=protocol,
        control=compare(measured.windows, baseline=HASTEN, challenger=AGAIN),
        comparisons=[compare(measured.windows, baseline=case.arms[0], challenger=arm) for arm in case.arms[1:]],
        measured=measured,
        targets=targets_of(case, work, measured, notes, matrices),
        findings={
            "plan": dict(case.plan),
            "peak_bytes": {arm: lines[-1]["peak_bytes"] for arm, lines in notes.items()},
        },
        tables=rates,
        remarks=[
            "all arms are built at the same time, and what compiles does so there: what each takes is no figure to "
            "compare",
            *([] if matrices is None else [_told(matrices)]),
        ],
    )
    conclude(record, records)


def _arms(name: str, case: Case, work: Work, home: Path, quick: bool) -> list[Arm]:
    size = work.batch_size // (QUARTER if quick else 1)
    plan = {**case.plan, "microbatch": size // HALF} if case.split else dict(case.plan)
    given: dict[str, Any] = {"work": name, "notes": str(home / "notes"), "batch_size": size}
    entries: dict[str, tuple[str, dict[str, Any]]] = {
        STRICT: ("by_hand", {"tuned": False}),
        TUNED: ("by_hand", {"tuned": True}),
        TRAINER: ("by_transformers", {}),
        HASTEN: ("by_hasten", {"choices": plan}),
        AGAIN: ("by_hasten", {"choices": plan}),
    }
    if LOADED in case.arms:
        loading = {
            "loader_workers": [read_machine().cores, {"kind": "threads"}],
            "pin_memory": True,
            "device_prefetch": 2,
        }
        folder = _pictures(home / "pictures")
        entries[LOADED] = ("by_hasten", {"choices": {**plan, **loading}, "folder": str(folder)})
    return [
        Arm(
            name=arm,
            entry=f"{ARMS}:{entries[arm][0]}",
            arguments={**given, "name": arm, **entries[arm][1]},
            steps=FILES * NAMES // size if arm == LOADED else None,  # an epoch
        )
        for arm in (*case.arms, *([] if quick else [AGAIN]))
    ]


def _pictures(folder: Path) -> Path:
    for path in sorted(write_pictures(folder, FILES).rglob("*.jpg")):
        for number in range(1, NAMES):
            path.with_stem(f"{path.stem}-{number}").hardlink_to(path)
    return folder


# ── what is told ────────────────────────────────────────────────────────────────────────────────────────────────────


def rates_table(work: Work, measured: Measured, notes: Notes) -> list[str]:
    lines = [f"| arm | {work.unit} a second | most memory, MiB | waits for data |", "|---" * 4 + "|"]
    for arm, noted in notes.items():
        rate = work.batch_size * work.units / middle_seconds(measured.windows, arm)
        told = noted[-1]["waited_seconds"] is not None
        waited = f"{median(shares_of_waiting(arm, measured, notes)):.1%}" if told else "–"
        lines.append(f"| {arm} | {rate:,.0f} | {noted[-1]['peak_bytes'] / 2**20:,.0f} | {waited} |")
    return lines


def shares_of_waiting(arm: str, measured: Measured, notes: Notes) -> list[float]:
    """Of each window's time, its warm-up left out."""
    windows = [window for window in measured.windows if window.arm == arm]
    return [
        line["waited_seconds"] / window.seconds
        for line, window in zip(notes[arm][-len(windows) :], windows, strict=True)
    ]


def targets_of(case: Case, work: Work, measured: Measured, notes: Notes, matrices: MatrixRate | None) -> list[Target]:
    least = [(HASTEN, other, bound) for other, bound in case.speeds.items()]
    found = speed_targets(measured.windows, least, "steps")
    rates = [
        work.batch_size * work.units / window.seconds_per_step for window in measured.windows if window.arm == HASTEN
    ]
    if case.rate is not None:
        found.append(_middle(f"{HASTEN}: {work.unit} a second", rates, case.rate, at_most=False))
    if case.share is not None and matrices is not None:
        per_unit = flops_of_token(work) / matrices.flops_per_second
        name = f"{HASTEN}: share of the matrix rate in bfloat16"
        found.append(_middle(name, [rate * per_unit for rate in rates], case.share, at_most=False))
    if case.waiting is not None:
        shares = shares_of_waiting(LOADED, measured, notes)
        found.append(_middle(f"{LOADED}: share of its time that it waits", shares, case.waiting, at_most=True))
    if case.memory is not None:
        ours, before = (notes[arm][-1]["peak_bytes"] for arm in (HASTEN, STRICT))
        name, ratio = f"{HASTEN}: bytes for each one of {STRICT}", ours / before
        found.append(Target(name=name, bound=case.memory, at_most=True, low=ratio, value=ratio, high=ratio))
    return found


def _middle(name: str, values: Sequence[float], bound: float, *, at_most: bool) -> Target:
    low, value, high = median_interval(values)
    return Target(name=name, bound=bound, at_most=at_most, low=low, value=value, high=high)


def flops_of_token(work: Work) -> float:
    """6 N + 12 layers × width × context, forward and backward (Chowdhery et al. 2022, arXiv:2204.02311, appendix B)."""
    model: Any = work.model()
    weights = sum(each.numel() for each in model.parameters())
    return 6 * weights + 12 * len(model.blocks) * model.bytes.embedding_dim * work.units


def _told(matrices: MatrixRate) -> str:
    return (
        f"the matrix rate is {matrices.flops_per_second / 1e12:.0f} TFLOP/s ({matrices.slowest / 1e12:.0f} to "
        f"{matrices.fastest / 1e12:.0f}), of products of {matrices.size} × {matrices.size} in {matrices.dtype}"
    )


if __name__ == "__main__":
    main()
