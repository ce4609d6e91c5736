"""Time and peak memory of a vision transformer, lever by lever (goal G7): ViT-S/16, batches of 16 pictures.

    python -m bench.vit              # half an hour; nothing else may run meanwhile; writes a record
    python -m bench.vit --quick      # minutes; shows that it works, and judges nothing

Time is compared by windows of optimizer steps in turns. Memory is the most that a process of its own has held, the
interpreter, torch and the data included, after three steps; each is started three times.

What bounds all of it is told beside: the seconds that the products of the linear layers alone take, in either format.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from bench.arms import Arm, Protocol, run_arms
from bench.judging import conclude, controlled, middle_seconds, speed_targets
from bench.options import parser_of
from bench.record import ROOT, Record, Target
from bench.vit_arms import BATCH, PIXELS, SMALL

from hasten.measure.paired_timing import compare

ARMS = Path(__file__).resolve().with_name("vit_arms.py")
BASELINE, JUDGED = "float32", "bf16, fused, fused optimizer, in four parts, freed memory kept"
FUSED = {"precision": "bf16", "fused_operators": True}
PRODUCTS = {"activation_checkpointing": ["blocks", {"keep": "products"}]}
KEPT = {"allocator": "keep_freed_memory"}
PLANS: Mapping[str, Mapping[str, Any]] = {
    BASELINE: {},
    "bf16": {"precision": "bf16"},
    "bf16, fused": FUSED,
    "bf16, fused as traced": {"precision": "bf16", "fused_operators": "traced"},
    "bf16, fused, freed memory kept": {**FUSED, **KEPT},
    "bf16, fused, products kept, in two parts, freed memory kept": {**FUSED, **PRODUCTS, "microbatch": 8, **KEPT},
    "bf16, blocks recomputed": {"precision": "bf16", "activation_checkpointing": "blocks"},
    "bf16, in four parts": {"precision": "bf16", "microbatch": 4},
    JUDGED: {**FUSED, "fused_optimizer": "fused", "microbatch": 4, **KEPT},
}

# Fixed before the first run. Which plan is judged was chosen anew when attention became an operator: at first it kept
# products, in two parts.
LEAST_SPEED, MOST_MEMORY = 2.0, 0.6
STARTS = 3


def main() -> None:
    options = parser_of("vit", __doc__).parse_args()
    arms = [Arm(name=name, entry=f"{ARMS}:arm", arguments={"choices": dict(plan)}) for name, plan in PLANS.items()]
    protocol = Protocol(rounds=2 if options.quick else 12, steps=4, warmup_steps=2)
    itself = controlled(arms[1], protocol)
    products = {dtype: _products_seconds(dtype) for dtype in (torch.float32, torch.bfloat16)}
    measured = run_arms(arms, protocol)
    comparisons = [compare(measured.windows, baseline=BASELINE, challenger=name) for name in PLANS if name != BASELINE]
    bytes_of = {
        name: [_peak_bytes(plan) for _ in range(1 if options.quick else STARTS)] for name, plan in PLANS.items()
    }
    for found in comparisons:
        print(f"{found.challenger:64} {found.speedup}  {_told(bytes_of[found.challenger])}", flush=True)
    print(f"{BASELINE:64} {_told(bytes_of[BASELINE])}", flush=True)
    record = Record(
        what="vit",
        claim="Time and peak memory of ViT-S/16 on batches of 16 pictures of 224 pixels, lever by lever",
        command="python -m bench.vit",
        protocol=protocol,
        control=itself,
        comparisons=comparisons,
        measured=measured,
        targets=[
            *speed_targets(measured.windows, [(JUDGED, BASELINE, LEAST_SPEED)], "steps"),
            _memory_target(bytes_of),
        ],
        findings={"peak_bytes": bytes_of},
        remarks=[
            *(f"{name}: {_told(found)} at most" for name, found in bytes_of.items()),
            f"the products of the linear layers take {products[torch.float32]:.2f} s of a step in float32, and"
            f" {products[torch.bfloat16]:.2f} s in bfloat16, by themselves; a step of {BASELINE} takes"
            f" {middle_seconds(measured.windows, BASELINE):.2f} s, one of what is judged"
            f" {middle_seconds(measured.windows, JUDGED):.2f} s",
        ],
    )
    conclude(record, None if options.quick else options.records)


def _peak_bytes(plan: Mapping[str, Any]) -> int:
    command = [sys.executable, "-m", "bench.vit_arms", json.dumps(plan)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(ended.stdout.split()[-1])


def _products_seconds(dtype: torch.dtype) -> float:
    """The least that the products of all linear layers take in a step, one forward and two backward each."""
    rows, wide, seconds = BATCH * ((PIXELS // SMALL.patch) ** 2 + 1), SMALL.width, 0.0
    for width, columns in ((wide, 3 * wide), (wide, wide), (wide, 4 * wide), (4 * wide, wide)):
        x, weight = torch.randn(rows, width).to(dtype), torch.randn(columns, width).to(dtype)
        gradient = torch.randn(rows, columns).to(dtype)
        for one, other in ((x, weight.t()), (gradient, weight), (gradient.t(), x)):
            seconds += min(_seconds(one, other) for _ in range(10))
    return SMALL.layers * seconds


def _seconds(one: torch.Tensor, other: torch.Tensor) -> float:
    start = time.perf_counter()
    torch.mm(one, other)
    return time.perf_counter() - start


def _memory_target(bytes_of: Mapping[str, list[int]]) -> Target:
    ours, before = (sorted(bytes_of[name]) for name in (JUDGED, BASELINE))
    return Target(
        name=f"{JUDGED}: bytes for each one of {BASELINE}",
        bound=MOST_MEMORY,
        at_most=True,
        low=ours[0] / before[-1],
        value=ours[len(ours) // 2] / before[len(before) // 2],
        high=ours[-1] / before[0],
    )


def _told(found: list[int]) -> str:
    return f"{min(found) / 2**20:,.0f} to {max(found) / 2**20:,.0f} MiB"


if __name__ == "__main__":
    main()
