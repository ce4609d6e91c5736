"""Numbers that nobody should have written, too many of them, and none at all."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hasten.facts.plan import Between, Plan
from hasten.facts.trials import Confirmed, Curves, Memory, Rates, Record
from hasten.report.page.charts import POINTS, Band, band, ticks
from hasten.report.page.plan_evidence import gathered
from hasten.report.page.plan_page import page_of_plan
from hasten.report.page.run_log import RunLog, event_of
from hasten.report.page.run_page import page_of_run
from support.report.hostile import COUNTS, NUMBERS, of_one_job, with_numbers
from support.report.parsed import Page, faults
from support.report.samples import sample_plan, sample_records, sample_run


def plan_page(records: list[Record], plan: Plan | None = None) -> str:
    return page_of_plan(gathered(plan or sample_plan(), "plan.toml", records))


def plan_page_of(change: Callable[[Any], Any]) -> str:
    records = [change(record) for record in sample_records(steps=5, seeds=2)]
    return plan_page(records, of_one_job(change(sample_plan()), records))


def run_log(events: list) -> RunLog:
    kinds = {"Trained": [], "Evaluated": []}
    for event in events:
        kinds.setdefault(type(event).__name__, []).append(event)
    return RunLog(
        folder="runs/job-1",
        plan=sample_plan(),
        environment={},
        started=kinds["Started"][0],
        trained=tuple(kinds["Trained"]),
        evaluated=tuple(kinds["Evaluated"]),
        finished=kinds["Finished"][0] if "Finished" in kinds else None,
    )


def check(page: str) -> None:
    assert faults(page) == []
    assert max(map(len, Page(page).text.split())) < 60  # no number of three hundred digits


@pytest.mark.parametrize(
    ("number", "count"),
    list(zip(NUMBERS, itertools.cycle(COUNTS), strict=False)),
    ids=lambda number: f"{number:.0e}" if isinstance(number, float) else f"{len(str(number))} digits",
)
def test_a_page_stands_whatever_all_its_numbers_are(number: float, count: int):
    def hostile(value):
        return with_numbers(value, lambda: number, lambda: count)

    check(plan_page_of(hostile))
    check(page_of_run(run_log([hostile(event) for event in sample_run(steps=7)])))


@pytest.mark.parametrize("seed", range(6))
def test_a_page_stands_whatever_numbers_come_together(seed: int):
    draw = random.Random(seed)

    def hostile(value):
        return with_numbers(value, lambda: draw.choice([*NUMBERS, 0.5, 3.0]), lambda: draw.choice([*COUNTS, 2, 30]))

    check(plan_page_of(hostile))
    check(page_of_run(run_log([hostile(event) for event in sample_run(steps=7)])))


def test_a_page_stands_on_records_that_hold_nothing():
    empty = [
        Curves(seeds=(), plain=(), planned=(), verdict="inconclusive", sentence="nothing ran"),
        Rates(steps=(), rates=(), momenta=()),
        Memory(arm="plain", bytes=()),
    ]
    page = plan_page([*sample_records(steps=2)[:1], *empty], Plan())
    check(page)
    assert "nothing ran" in page


@pytest.mark.parametrize(
    "curves",
    [
        {"seeds": (1,), "plain": ((2.0,),), "planned": ((2.0,),)},
        {"seeds": (1, 2), "plain": ((2.0, 1.0), (1.5,)), "planned": ((), (1.0, 1.0, 1.0))},
        {"seeds": (1,), "plain": (), "planned": ((1.0, math.nan, 2.0),)},
        {"seeds": (), "plain": ((),), "planned": ((),)},
    ],
)
def test_curves_of_any_length_are_drawn(curves: dict):
    check(plan_page([Curves(verdict="equivalent", sentence="as it was", **curves)]))


@pytest.mark.parametrize("kind", [type(record) for record in sample_records(steps=2, seeds=1)])
def test_a_page_stands_without_any_one_kind_of_record_and_with_it_alone(kind: type):
    records = sample_records(steps=4, seeds=2)
    check(plan_page([record for record in records if not isinstance(record, kind)]))
    check(plan_page([record for record in records if isinstance(record, kind)]))
    check(plan_page([record for record in records if isinstance(record, kind)], Plan()))


def test_a_hundred_thousand_steps_are_thinned_and_the_page_stays_small():
    steps = 100_000
    values = tuple(1.0 + 0.001 * (step % 7) for step in range(steps))
    spiked = (*values[:777], 50.0, *values[778:])
    long = Curves(seeds=(1, 2), plain=(values, spiked), planned=(values, values), verdict="harmed", sentence="spike")
    rates = Rates(steps=tuple(range(steps)), rates=values, momenta=values)
    page = plan_page([*sample_records(steps=2)[:-5], long, rates, Memory(arm="plain", bytes=tuple(range(steps)))])
    check(page)
    assert len(page) < 400_000
    assert "Each point stands for 313 steps" in page


def test_a_value_that_is_not_finite_leaves_a_gap_and_is_counted():
    sample = next(record for record in sample_records(steps=50, seeds=2) if isinstance(record, Curves))
    broken = replace(sample, planned=((*sample.planned[0][:20], math.nan, *sample.planned[0][21:]), sample.planned[1]))
    page = Page(plan_page([broken]))
    assert "with the plan (2 seeds): 1 value of the loss is not finite, and leaves a gap." in page.text
    lines = [a["d"] or "" for tag, a in page.tags if tag == "path" and a["class"] == "line planned"]
    assert lines[0].count("M") == 2


def drawn(curve: list[float], points: int = POINTS) -> Band:
    return band("loss", "plain", [curve], points=points)


def test_a_stretch_keeps_its_extremes_and_says_how_long_it_is():
    found = drawn([float(i) for i in range(1000)], 10)
    assert (found.stretch, found.broken, len(found.at)) == (100, 0, 10)
    assert (found.lows[3], found.means[3], found.highs[3]) == (300.0, 349.5, 399.0)
    assert found.at[0] == 50.5  # the middle of steps 1 to 100


def test_a_short_curve_is_unchanged():
    values = [math.sin(i) for i in range(POINTS)]
    assert drawn(values).means == tuple(values)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, (0, 0.25, 0.5, 0.75, 1)),
        (2.1, 9.7, (2, 4, 6, 8, 10)),
        (3, 3, (1, 2, 3, 4, 5)),
        (0, 0, (-1, -0.5, 0, 0.5, 1)),
    ],
)
def test_marks_of_an_axis_are_round(low: float, high: float, expected: tuple):
    assert ticks(low, high) == pytest.approx(expected)


def test_numbers_of_a_log_that_are_no_numbers_are_no_event():
    line = '{"event": "noticed", "text": "a"}'
    assert event_of(line) is not None
    fields = '"step": 1, "epoch": 1, "results": {"loss": %s}, "seconds": 1.0, "batch_size": 1, "best": true'
    assert event_of('{"event": "evaluated", ' + fields % '"NaN"' + "}") is not None
    assert event_of('{"event": "evaluated", ' + fields % ("9" * 400) + "}") is None
    for wrong in [
        '{"event": "noticed", "text": 3}',
        '{"event": "noticed"}',
        '{"event": ["noticed"]}',
        "[]",
        "{",
        "",
        "9" * 5000,
    ]:
        assert event_of(wrong) is None


@pytest.mark.parametrize(
    ("low", "high", "between"),
    [
        (2.0, 0.0, Between(low=1.0, high=2.0)),
        (0.0, 0.0, Between(low=1.0, high=2.0)),
        (2.0, 4.0, Between(low=600.0, high=300.0)),
        (2.0, 4.0, Between(low=-2.0, high=-1.0)),
        (2.0, 4.0, Between(low=1.0, high=1e300)),
        (2.0, 4.0, Between(low=math.nan, high=1.0)),
    ],
)
def test_a_spread_that_cannot_be_is_not_shown(low: float, high: float, between: Between):
    def impossible(record: Record) -> Record:
        if not isinstance(record, Confirmed):
            return record
        found = replace(record.speedup, low=low, high=high)
        return replace(record, speedup=found, plain=replace(record.plain, between=between))

    shown = plan_page([impossible(record) for record in sample_records(steps=5, seeds=2)])
    assert faults(shown) == []
    text = Page(shown).text
    assert re.search(r"with this plan:? 2 min 11 s \(", text)
    assert ("by most windows" in text) == (between == Between(low=1.0, high=2.0))
