"""The bench of the tuner: its workloads, its grid, what it judges and how it goes on; a sample of each."""

from __future__ import annotations

import json

import pytest
import torch
from bench.aa_tuner import HARMS, NOTHING, searched, trials_of, wanted
from bench.tuner_grid import (
    NEVER,
    Raced,
    allowed_values,
    legal_product,
)

from bench import tuner_jobs
from hasten.errors import InvalidMeasurement
from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Speedup
from hasten.facts.trials import Tried


def choice(technique: str, value: object, preserves: Preserves | None = Preserves.ROUNDING) -> Choice:
    return Choice(technique=technique, value=value, preserves=preserves)


BF16, FLUSH, COMPILE = choice("precision", "bf16"), choice("flush_denormals", True), choice("compile", "default")
THREADS = [choice("threads", count) for count in (1, 2, 3, 4)]
WORKERS, KEPT = choice("loader_workers", 2), choice("persistent_workers", True)


def raced(ratio: float, *choices: Choice, seconds: float = 1.0) -> Raced:
    return Raced(configuration=choices, ratio=ratio, seconds=seconds)


def test_the_planted_choice_is_seen_from_inside_and_only_then_costs():
    tuner_jobs.flushes.cache_clear()
    assert tuner_jobs.units(0.3) == tuner_jobs.UNITS
    try:
        assert torch.set_flush_denormal(True)
        tuner_jobs.flushes.cache_clear()
        assert [tuner_jobs.units(slower) / tuner_jobs.UNITS for slower in (0.0, 0.05, 0.1, 0.3)] == [1, 1.05, 1.1, 1.3]
    finally:
        torch.set_flush_denormal(False)
        tuner_jobs.flushes.cache_clear()


# ── the grid ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_no_plan_may_hold_is_left_out_with_its_reason():
    schedule = choice("schedule", "one-cycle", None)
    values, left = allowed_values([BF16, FLUSH, COMPILE, schedule, *THREADS], Preserves.STATISTICS, [FLUSH])
    assert values == [[BF16], THREADS[:3]]
    assert left == [
        "flush_denormals = true: failed the proof of its claim on this job",
        f"compile = default: {NEVER['compile']}",
        "schedule = one-cycle: changes more than a search is allowed to",
        "threads = 4: beyond the first 3 values",
    ]


def test_the_grid_is_every_legal_way_to_take_none_or_one_of_each():
    found = legal_product([[BF16], THREADS[:2], [WORKERS], [KEPT]])
    assert len(found) == 2 * 3 * 3 - 1  # workers that persist need workers
    assert (KEPT,) not in found
    assert (BF16, THREADS[0], WORKERS, KEPT) in found


# ── choices that do nothing ─────────────────────────────────────────────────────────────────────────────────────────


def line(job: str, *kept: str, seconds: float = 1.0) -> dict:
    return {"job": job, "kept": list(kept), "tried": [{"verdict": "faster" if kept else "slower"}], "seconds": seconds}


def test_searches_go_on_where_they_were(tmp_path):
    jobs = wanted(2, 4)
    assert jobs == [NOTHING, NOTHING, *HARMS, HARMS[0]]
    done = [line(job, seconds=float(number)) for number, job in enumerate(reversed(jobs))]
    (tmp_path / "searches.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in done))
    lines = searched(tmp_path, jobs)
    assert [each["job"] for each in lines] == jobs
    assert sorted(each["seconds"] for each in lines) == [0, 1, 2, 3, 4, 5]  # each is counted once


@pytest.mark.trap(48)
def test_a_search_that_did_not_measure_the_choice_shows_nothing():
    skipped = Tried(choice=FLUSH, on=(), verdict="skipped", reason="at most 0.1 % to gain")
    measured = Tried(
        choice=FLUSH, on=(), verdict="slower", reason="0.9", speedup=Speedup(ratio=0.9, low=0.8, high=0.95, pairs=12)
    )
    assert trials_of([measured, skipped]) == [measured, skipped]
    with pytest.raises(InvalidMeasurement, match=r"not measured flush_denormals: at most 0.1 % to gain"):
        trials_of([skipped])
    with pytest.raises(InvalidMeasurement, match="not even proposed"):
        trials_of([])


@pytest.mark.proof
@pytest.mark.trap(50)
def test_a_search_keeps_nothing_of_a_choice_that_makes_steps_slower(tmp_path):
    [found] = searched(tmp_path, [HARMS[-1]])
    assert found["kept"] == []
    assert len(found["tried"]) == 1
    assert json.loads((tmp_path / "searches.jsonl").read_text()) == found
