"""A plan with all its evidence, and a run, as they are told on a page. Every number is made up for tests."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hasten.facts.choice import Choice, Preserves
from hasten.facts.events import Evaluated, Finished, Noticed, Started, Trained
from hasten.facts.plan import Between, Fingerprint, Plan, PlannedChoice, Proof, ProvenOn, Rejected, Speedup, Total
from hasten.facts.plan_file import plan_to_toml
from hasten.facts.trials import (
    Budget,
    Confirmed,
    Costs,
    Curves,
    Earned,
    Ended,
    Noise,
    Plain,
    Proven,
    Reached,
    Record,
    Surveyed,
    Tried,
    line_of,
)

MACHINE = "8 cores of a made-up processor, 32.0 GiB, no accelerator, torch 2.13.0"
FINGERPRINT = Fingerprint(
    source="examples/digits.py:job", parameters=594_186, shapes="5f1d0c3a9e774b20", batch_size=64, samples=1437
)
PROVEN_ON = ProvenOn(cores=8, memory_bytes=32 << 30, accelerator=None, torch="2.13.0")

BF16 = Choice(technique="precision", value="bf16", preserves=Preserves.STATISTICS)
LAYOUT = Choice(technique="channels_last", value=True, preserves=Preserves.ROUNDING)
FUSED = Choice(technique="fused_optimizer", value="fused", preserves=Preserves.ROUNDING)
WORKERS = Choice(technique="loader_workers", value=4, preserves=Preserves.BITS, options={"start": "fork"})
COMPILE = Choice(technique="compile", value="default", preserves=Preserves.ROUNDING, options={"dynamic": False})
THREADS = Choice(technique="threads", value=6, preserves=Preserves.ROUNDING)
MEMORY = Choice(technique="in_memory", value=True, preserves=Preserves.BITS)
BIASES = Choice(technique="conv_bn_bias", value=True, preserves=Preserves.ROUNDING)
RATE = Choice(technique="learning_rate", value=0.2, preserves=Preserves.TRAINING)
CLIPPED = Choice(technique="clipping", value=1.0, preserves=Preserves.TRAINING)
PREFETCH = Choice(technique="prefetch", value=8, preserves=Preserves.BITS)
AGREES = "the first update agrees with float64"
SAME = "the interval contains 1"
PLAIN_TAKES = (  # as sample_records() have it
    "6 min 52 s for the whole run with startup; 80 % of timings: 6 min 19 s–8 min 15 s"
)
KEPT = (BF16, LAYOUT, WORKERS, FUSED)


def faster(ratio: float, spread: float = 0.05, pairs: int = 16) -> Speedup:
    return Speedup(ratio=ratio, low=ratio * (1 - spread), high=ratio * (1 + spread), pairs=pairs)


def sample_plan() -> Plan:
    proofs = {"precision": 1.31, "channels_last": 1.02, "fused_optimizer": 0.98}
    return Plan(
        job=FINGERPRINT,
        machine=PROVEN_ON,
        total=Total(baseline_seconds=412.3, planned_seconds=131.4, one_off_seconds=4.2, break_even_step=61),
        choices=tuple(
            PlannedChoice(
                choice=choice,
                speedup=faster(1.3),
                proof=Proof(gradient_error=error, bound=2.0) if error else None,
            )
            for choice in KEPT
            for error in [proofs.get(choice.technique)]
        ),
        rejected=(
            Rejected(technique="threads", value=6, reason="earns nothing in the whole plan"),
            Rejected(technique="tea", reason="was never tried"),
            Rejected(
                technique="pin_memory", reason="there is no accelerator that pinned memory could be sent to faster"
            ),
        ),
    )


def sample_records(steps: int = 300, seeds: int = 4) -> list[Record]:
    return [
        Surveyed(
            key="8d1c", seed=0, job="examples/digits.py:job", device="cpu", machine=MACHINE,
            environment={"hasten": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
            fingerprint=FINGERPRINT, proven_on=PROVEN_ON, total_steps=4600, total_epochs=20, evaluations=20,
            refused={
                "cudnn_autotune": "there is no CUDA device",
                "device_prefetch": "data and model are on the same device",
                "fused_operators": "no layer calls torch.nn.functional.scaled_dot_product_attention",
                "pin_memory": "there is no accelerator that pinned memory could be sent to faster",
            },
            ceiling=Preserves.STATISTICS,
        ),
        Noise(speedup=Speedup(ratio=1.002, low=0.987, high=1.018, pairs=16), window_steps=12),
        Plain(costs=_costs(405.0)),
        *_budgets(),
        *_trials(),
        Proven(choice=BF16, passes=True, reason=AGREES, gradient_error=1.31, bound=2.0),
        Proven(choice=LAYOUT, passes=True, reason=AGREES, gradient_error=1.02, bound=2.0),
        Proven(choice=WORKERS, passes=True, reason="the same bits in 24 steps"),
        Proven(choice=FUSED, passes=True, reason=AGREES, gradient_error=0.98, bound=2.0),
        Proven(choice=BIASES, passes=False, reason="lies beyond the bound", gradient_error=3.4, bound=2.0),
        _confirmed(),
        sample_reached(CLIPPED, None),
        sample_reached(RATE, faster(1.02, 0.1, 5)),
        _curves(steps, seeds),
        Ended(choices=KEPT, seconds=61.4),
    ]  # fmt: skip


def sample_run(steps: int = 120) -> list[Any]:
    """Events of a run, with a result that is not finite among them."""
    draw = random.Random(3)
    events: list[Any] = [
        Started(
            job="examples/digits.py:job", machine=MACHINE, device="cpu", parameters=594_186, samples=1437,
            batch_size=64, microbatch_size=64, total_steps=steps * 5, total_epochs=20,
            choices=tuple(map(str, KEPT)),
        ),
        Noticed(text="5 convolution biases that a batch norm cancels were removed"),
    ]  # fmt: skip
    for index in range(1, steps + 1):
        part = index / steps
        events.append(
            Trained(
                step=index * 5, epoch=index // 6, loss=2.3 * math.exp(-4 * part) + 0.02 + 0.06 * draw.random(),
                learning_rate=0.1 * math.sin(math.pi * part), momentum=0.95 - 0.1 * math.sin(math.pi * part),
                gradient_norm=None, seconds=1.1 * index, samples_per_second=2400 + 120 * draw.gauss(0, 1),
                data_wait_share=0.02 + 0.03 * draw.random(), memory_bytes=int(4.9e8 + 1e5 * index), skipped_updates=0,
            )
        )  # fmt: skip
        if index % 6 == 0:
            results = {"loss": 2.1 * math.exp(-3.5 * part) + 0.05, "accuracy": 1 - 0.9 * math.exp(-5 * part)}
            events.append(
                Evaluated(step=index * 5, epoch=index // 6, results=results, seconds=0.04, batch_size=256, best=True)
            )
    results = {"loss": 0.1134, "accuracy": 0.9944}
    events.append(
        Finished(
            reason="the planned run is complete", steps=steps * 5, epochs=20, seconds=132.0, results=results,
            kept_step=steps * 5, skipped_updates=0, weights="runs/job-1/model.safetensors",
        )
    )  # fmt: skip
    return events


def write_plan(folder: Path, plan: Plan | None = None, records: list[Record] | None = None) -> Path:
    """plan.toml and its file of trials, in this folder."""
    path = folder / "plan.toml"
    path.write_text(plan_to_toml(plan or sample_plan()), encoding="utf-8")
    lines = "".join(f"{line_of(record)}\n" for record in (sample_records() if records is None else records))
    (folder / "plan.trials.jsonl").write_text(lines, encoding="utf-8")
    return path


def write_run(folder: Path, events: list[Any] | None = None) -> Path:
    """A run folder, as training leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"event": type(event).__name__.lower(), **asdict(event)} for event in events or sample_run()]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    (folder / "plan.toml").write_text(plan_to_toml(sample_plan()), encoding="utf-8")
    return folder


def sample_reached(choice: Choice, speedup: Speedup | None, *, kept: bool = False) -> Reached:
    """From five seeds; without a speed-up, from one that it never came to the target from."""
    seeds = 1 if speedup is None else 5
    return Reached(
        choice=choice, on=KEPT, metric="loss", higher_is_better=False, seeds=tuple(range(1, 1 + seeds)),
        targets=tuple(0.11 + 0.002 * seed for seed in range(seeds)),
        seconds_without=tuple(128.0 + seed for seed in range(seeds)), steps_without=(4600,) * seeds,
        seconds_with=(None,) if speedup is None else tuple(82.0 + seed for seed in range(seeds)),
        steps_with=(None,) if speedup is None else (2990,) * seeds,
        speedup=speedup, kept=kept, sentence="as the runs came to it",
    )  # fmt: skip


def _budgets() -> list[Record]:
    parts = ("data_wait", "transfer", "forward", "backward", "optimizer", "python", "evaluation")
    plain = dict(zip(parts, (0.0181, 0.0002, 0.0252, 0.0391, 0.0048, 0.0019, 0.41), strict=True))
    planned = dict(zip(parts, (0.0011, 0.0002, 0.0098, 0.0142, 0.0011, 0.0016, 0.22), strict=True))
    return [Budget(arm="plain", steps=24, **plain), Budget(arm="planned", steps=24, **planned)]


def _trials() -> list[Record]:
    return [
        Tried(choice=BF16, on=(), verdict="faster", reason="it pays", speedup=faster(1.62), costs=_costs(254.0)),
        Tried(choice=LAYOUT, on=(), verdict="no difference", reason=SAME, speedup=faster(1.01, 0.03)),
        Tried(choice=LAYOUT, on=(BF16,), verdict="faster", reason="it pays", speedup=faster(1.21, 0.03)),
        Tried(choice=WORKERS, on=(BF16, LAYOUT), verdict="faster", reason="it pays", speedup=faster(1.33, 0.04)),
        Tried(choice=FUSED, on=(BF16, LAYOUT, WORKERS), verdict="faster", reason="", speedup=faster(1.08, 0.02)),
        Tried(choice=THREADS, on=(BF16,), verdict="faster", reason="", speedup=faster(1.03, 0.015, 24)),
        Tried(choice=COMPILE, on=(BF16, LAYOUT), verdict="slower", reason="costs 59 s", speedup=faster(0.84, 0.02)),
        Tried(choice=PREFETCH, on=(WORKERS,), verdict="no difference", reason=SAME, speedup=faster(0.998, 0.02, 12)),
        Tried(choice=BIASES, on=(BF16,), verdict="failed", reason="non-finite: the loss is NaN at step 3"),
        Tried(choice=MEMORY, on=(), verdict="skipped", reason="the time ran out"),
    ]  # fmt: skip


def _costs(total: float, peak: int = 460 << 20) -> Costs:
    step, between = (total - 12) / 4600, Between(low=total * 0.92, high=total * 1.2)
    return Costs(one_off=1.2, step=step, turn=0.12, evaluation=0.41, total=total, peak_bytes=peak, between=between)


def _confirmed() -> Confirmed:
    return Confirmed(
        choices=KEPT,
        speedup=Speedup(ratio=3.14, low=2.93, high=3.31, pairs=16),
        noise=Speedup(ratio=1.004, low=0.985, high=1.021, pairs=16),
        plain=_costs(412.3),
        planned=Costs(one_off=4.2, step=0.0251, turn=0.05, evaluation=0.22, total=131.4, peak_bytes=391 << 20),
        earned=tuple(
            Earned(choice=choice, speedup=faster(ratio, 0.04), kept=True)
            for choice, ratio in zip(KEPT, (1.71, 1.24, 1.38, 1.07), strict=True)
        ),
    )


def _curves(steps: int, seeds: int) -> Curves:
    def curve(seed: int, shift: float) -> tuple[float, ...]:
        draw, noisy = random.Random(seed), random.Random(seed + shift)
        scale = 1 + 0.06 * draw.random()
        return tuple(
            scale * (2.3 * math.exp(-5 * step / steps) + 0.08) + 0.05 * draw.random() + 0.02 * noisy.random()
            for step in range(steps)
        )

    return Curves(
        seeds=tuple(range(seeds)),
        plain=tuple(curve(seed, 0.1) for seed in range(seeds)),
        planned=tuple(curve(seed, 0.2) for seed in range(seeds)),
        verdict="equivalent",
        sentence="loss is equivalent with 4 pairs: +0.03% (-0.21% to +0.27%)",
    )
