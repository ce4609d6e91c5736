"""The bench of the tuner: its workloads, its grid, what it judges and how it goes on; a sample of each."""

from __future__ import annotations

import json

import pytest
import torch
from bench.aa_tuner import HARMS, NOTHING, searched, trials_of, wanted
from bench.tuner import EXPECTED, OWN, QUICK, Bench
from bench.tuner_grid import (
    NEVER,
    Raced,
    allowed_values,
    legal_product,
)
from bench.tuner_record import STAGES, errors, judged, read, write

import hasten
from bench import tuner_jobs
from hasten.errors import InvalidMeasurement
from hasten.facts.choice import Choice, Preserves, Speedup
from hasten.facts.trials import Tried


def choice(technique: str, value: object, preserves: Preserves | None = Preserves.ROUNDING) -> Choice:
    return Choice(technique=technique, value=value, preserves=preserves)


BF16, FLUSH, COMPILE = choice("precision", "bf16"), choice("flush_denormals", True), choice("compile", "default")
THREADS = [choice("threads", count) for count in (1, 2, 3, 4)]
WORKERS, KEPT = choice("loader_workers", 2), choice("persistent_workers", True)


def raced(ratio: float, *choices: Choice, seconds: float = 1.0) -> Raced:
    return Raced(configuration=choices, ratio=ratio, seconds=seconds)


@pytest.mark.proof
@pytest.mark.parametrize("name", [name for name in OWN if name not in ("loader", "transfer")])
def test_a_workload_learns_and_is_the_same_every_time(name):
    losses = list[list[float]]()
    for seed in (1, 2):
        torch.manual_seed(seed)  # the caller's own numbers are of no account
        with hasten.prepare(getattr(tuner_jobs, name)()) as run:
            batch = next(iter(run.batches()))
            losses.append([float(run.step(batch)) for _ in range(2)])
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1]


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
        "flush_denormals = True: failed the proof of its claim on this job",
        f"compile = default: {NEVER['compile']}",
        "schedule = one-cycle: changes more than a search is allowed to",
        "threads = 4: beyond the first 3 values",
    ]


def test_the_grid_is_every_legal_way_to_take_none_or_one_of_each():
    found = legal_product([[BF16], THREADS[:2], [WORKERS], [KEPT]])
    assert len(found) == 2 * 3 * 3 - 1  # workers that persist need workers
    assert (KEPT,) not in found
    assert (BF16, THREADS[0], WORKERS, KEPT) in found


# ── going on, and the record ────────────────────────────────────────────────────────────────────────────────────────


def test_a_stage_is_measured_once(tmp_path):
    def bench() -> Bench:
        found = Bench("rows", tmp_path, QUICK, lambda what: None)
        found._alone = lambda: {"raced": [], "windows": measured.append(1)}  # type: ignore[method-assign]
        return found

    measured = list[int]()
    assert bench().stage("alone")["raced"] == []
    assert bench().stage("alone")["stage_seconds"] >= 0
    assert len(measured) == 1


def measured_workload(folder, ratio: float, seconds: float, predicted: float = 10.0) -> None:
    """As the stages leave it."""
    interval = {"ratio": ratio, "low": ratio - 0.02, "high": ratio + 0.02, "pairs": 12}
    windows = [{"heat": 0, "arm": "oracle", "steps": 50, "seconds": [1.0]}]
    run = {"seconds": 10.0, "loop_seconds": 9.9, "steps": 5, "wall_seconds": 13.0}
    stages = {
        "tune": {"seconds": seconds, "choices": [], "harmful": [], "compiled": False},
        "alone": {"raced": [], "left": ["compile = default: too long"], "windows": windows},
        "product": {"raced": [raced(0.0, BF16).as_table() | {"failed": "crashed: at once"}], "left": ["threads"]},
        "finalists": {"raced": []},
        "head_to_head": {
            "oracle": [],
            "grid": 3,
            "random_saw": 2,
            "tuned_is_the_oracle": False,
            "window_is_short": False,
            "windows": windows,
            **dict.fromkeys(("control", "tuned_over_oracle", "random_over_oracle"), interval),
        },
        "realised": {
            "predicted": {"baseline_seconds": predicted, "planned_seconds": 10.0, "process_seconds": 0.0},
            "plain": [run, {**run, "seconds": 8.0}],
            "planned": [run],
        },
    }
    assert set(stages) == set(STAGES) == set(EXPECTED)
    folder.mkdir(parents=True)
    for stage, found in stages.items():
        (folder / f"{stage}.json").write_text(json.dumps(found))


def test_the_targets_are_seconds_share_of_the_oracle_and_how_far_predictions_lie_apart(tmp_path):
    for name, ratio in {"digits": 1.0, "rows": 0.96, "text": 0.8}.items():
        measured_workload(tmp_path / name, ratio, seconds=61.0 if name == "text" else 30.0, predicted=12.0)
    measured = {name: read(tmp_path / name) for name in ("digits", "rows", "text")}
    found = {target.name: target for target in judged(measured, ["digits", "text"], 3)}
    assert found["digits: seconds of hasten tune"].outcome == "met"
    assert found["text: seconds of hasten tune"].outcome == "missed"
    oracle = found["workloads of 3 whose plan is at least 0.95 of the oracle's"]
    assert (oracle.low, oracle.value, oracle.high) == (1, 2, 2)
    assert errors(measured["rows"], "plain") == pytest.approx([0.2, 0.5])
    assert found["rows, plain: share by which the prediction and the whole run lie apart"].outcome == "missed"
    assert found["rows, planned: share by which the prediction and the whole run lie apart"].outcome == "met"
    assert not any("oracle" in target.name for target in judged(measured, [], 10))  # a part decides nothing


def test_a_record_holds_every_window_and_names_what_was_left_out(tmp_path):
    measured_workload(tmp_path / "work" / "rows", 0.97, seconds=30.0)
    (tmp_path / "work" / "memory").mkdir()  # was interrupted
    home = write(tmp_path / "work", ["rows", "memory"], [], tmp_path / "records")
    page, result = (home / "README.md").read_text(), json.loads((home / "result.json").read_text())
    assert "| rows | 30 | plain | plain | 0.970 (0.950–0.990) |" in page
    assert "left out: compile = default: too long" in page
    assert "raced alone and not in the product: threads" in page
    assert "failed: precision = bf16: crashed: at once" in page
    assert "Not in this record: memory" in page
    assert result["missing"] == ["memory"]
    assert (home / "samples.jsonl").read_text().count('"workload": "rows"') == 2


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
