"""What the pipeline's bench makes of what it has measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.arms import Measured, OneOff, Protocol
from bench.pipeline_record import (
    NAIVE,
    PLAIN,
    PLANNED,
    STOPPED,
    Found,
    Whole,
    foretold,
    targets,
    times_faster,
)

from hasten.facts.plan import Between, Plan, Total
from hasten.measure.paired_timing import Window, compare

STEPS = {NAIVE: 0.2, PLAIN: 0.1, "+ cache": 0.04}


def windows() -> tuple[Window, ...]:
    return tuple(Window(arm=arm, steps=10, seconds=10 * each) for _ in range(12) for arm, each in STEPS.items())


def found(name: str = "images") -> Found:
    costs = [OneOff(arm=arm, build_seconds=1, warmup_seconds=1, warmup_steps=1, threads=2) for arm in STEPS]
    seconds = {NAIVE: (100, 104, 96), PLAIN: (50, 52, 48), PLANNED: (20, 21, 19), STOPPED: (8, 9, 8)}
    return Found(
        name=name,
        metric="accuracy",
        plan=Plan(total=Total(baseline_seconds=50, planned_seconds=20, one_off_seconds=1)),
        tuning_seconds=240,
        arms=tuple(STEPS),
        protocol=Protocol(rounds=12),
        control=compare(windows(), baseline=NAIVE, challenger=PLAIN),
        measured=Measured(windows=windows(), one_off=tuple(costs)),
        wholes={
            way: [Whole(seconds=each, value=0.99, curve=[(each / 2, 0.9), (each, 0.99)]) for each in many]
            for way, many in seconds.items()
        },
    )


def test_whole_runs_are_compared_seed_by_seed():
    low, middle, high = times_faster(found(), PLANNED)
    assert low < 5 < high
    assert middle == pytest.approx(5, rel=0.01)


def test_a_record_names_the_command_with_its_seeds_and_what_the_search_said_with_its_spread():
    assert found().command == "python -m bench.pipeline --only images --seeds 3"
    measured = found()
    assert measured.plan.total is not None
    total = replace(measured.plan.total, baseline_between=Between(low=45, high=61.25))
    told = foretold(replace(measured, plan=replace(measured.plan, total=total)))
    assert "the job takes 50.0 s (45.0–61.2 by most windows), and with the plan 20.0 s, 2.5 times as fast" in told


def test_the_goals_speeds_are_asked_of_pictures_alone_and_the_rest_of_all():
    asked = {name: [target.name for target in targets(found(name))] for name in ("images", "rows")}
    assert [name for name in asked["images"] if "times faster" in name] != []
    assert [name for name in asked["rows"] if "times faster" in name] == []
    assert len(asked["rows"]) == 5  # lost by either way, and by the plan; what the search said, from above and below
    judged = {target.name: target.outcome for target in targets(found())}
    assert judged[f"{STOPPED}: times faster than the {NAIVE}, whole runs"] == "met"


@pytest.mark.parametrize(
    ("results", "seconds", "kept"),
    [
        ([0.5, 0.9, 0.8, 0.9, 0.7, 0.95], 5, 0.9),  # as good as the best one is none better
        ([0.5, 0.9, 0.8, 0.85, 0.95, 0.7], 6, 0.95),
        ([0.9], 1, 0.9),
    ],
)
def test_a_script_is_cut_where_the_rule_of_the_stopped_jobs_would_have_ended_it(results, seconds, kept):
    run = Whole(seconds=len(results), value=results[-1], curve=[*enumerate(results, start=1)])
    assert (run.stopped(higher=True).seconds, run.stopped(higher=True).value) == (seconds, kept)
    turned = replace(run, curve=[(at, -each) for at, each in run.curve])
    assert (turned.stopped(higher=False).seconds, turned.stopped(higher=False).value) == (seconds, -kept)
