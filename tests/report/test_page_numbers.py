"""Curves that are long, short, or hold numbers that are not finite, and the marks of their axes."""

from __future__ import annotations

import math

import pytest

from hasten.facts.plan import Plan
from hasten.facts.trials import Curves, Record
from hasten.report.page.charts import POINTS, Line, chart, thinned, ticks
from hasten.report.page.plan_evidence import gathered
from hasten.report.page.plan_page import page_of
from hasten.report.page.run_log import event_of
from support.report.parsed import faults
from support.report.samples import sample_plan, sample_records


def plan_page(records: list[Record], plan: Plan | None = None) -> str:
    page = page_of(gathered(plan or sample_plan(), "plan.toml", records))
    assert faults(page) == []
    return page


def test_a_page_stands_on_records_that_hold_nothing():
    empty = Curves(seeds=(), plain=(), planned=(), verdict="inconclusive", sentence="nothing ran")
    assert "Nothing ran" in plan_page([*sample_records(steps=2)[:1], empty], Plan())


def test_a_page_stands_without_any_one_kind_of_record_and_with_it_alone():
    records = sample_records(steps=4, seeds=2)
    for kind in {type(record) for record in records}:
        plan_page([record for record in records if not isinstance(record, kind)])
        plan_page([record for record in records if isinstance(record, kind)])


def test_a_hundred_thousand_steps_are_thinned_and_the_page_stays_small():
    steps = 100_000
    values = tuple(1.0 + 0.001 * (step % 7) for step in range(steps))
    spiked = (*values[:777], 50.0, *values[778:])
    long = Curves(seeds=(1, 2), plain=(values, spiked), planned=(values, values), verdict="harmed", sentence="spike")
    assert len(plan_page([*sample_records(steps=2)[:-2], long])) < 100_000


def test_a_long_curve_keeps_its_extremes_and_a_short_one_is_unchanged():
    short = [(float(step), math.sin(step)) for step in range(POINTS)]
    assert thinned(short) == short
    spiked = [(float(step), 50.0 if step == 777 else step % 7 / 10) for step in range(100 * POINTS)]
    kept = thinned(spiked)
    assert len(kept) <= POINTS
    assert (777.0, 50.0) in kept
    assert kept == sorted(kept)


def test_a_value_that_is_not_finite_is_a_gap_in_a_short_curve_and_in_a_long_one():
    values = [1.0, math.nan, math.inf, 2.0]
    [drawn] = chart("Loss", [Line(label="loss", kind="plain", points=[*enumerate(values)])], "loss")
    assert drawn.curves[0].line.count("M") == 2
    assert len(drawn.curves[0].dots) == 2
    kept = thinned([(float(step), math.nan if step == 777 else 1.0) for step in range(100 * POINTS)])
    assert sum(math.isnan(value) for _, value in kept) == 1
    assert chart("Loss", [Line(label="loss", kind="plain", points=[(1.0, math.nan)])], "loss") == []


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
    assert event_of('{"event": "noticed", "text": "a"}') is not None
    fields = '"step": 1, "epoch": 1, "results": {"loss": %s}, "seconds": 1.0, "batch_size": 1, "best": true'
    assert event_of('{"event": "evaluated", ' + fields % '"NaN"' + "}") is not None
    for wrong in ('{"event": "noticed", "text": 3}', '{"event": ["noticed"]}', "[]", "{", "", "9" * 5000):
        assert event_of(wrong) is None
