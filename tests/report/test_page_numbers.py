"""Curves that are long, short, or hold numbers that are not finite, and the marks of their axes."""

from __future__ import annotations

import math

import pytest

from hasten.facts.plan import Plan
from hasten.facts.trials import Curves, Memory, Rates, Record
from hasten.report.page.charts import POINTS, Band, band, ticks
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
    empty = [
        Curves(seeds=(), plain=(), planned=(), verdict="inconclusive", sentence="nothing ran"),
        Rates(steps=(), rates=(), momenta=()),
        Memory(arm="plain", bytes=()),
    ]
    assert "nothing ran" in plan_page([*sample_records(steps=2)[:1], *empty], Plan())


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
    rates = Rates(steps=tuple(range(steps)), rates=values, momenta=values)
    page = plan_page([*sample_records(steps=2)[:-5], long, rates, Memory(arm="plain", bytes=tuple(range(steps)))])
    assert len(page) < 400_000
    assert "Each point stands for 313 steps" in page


def drawn(curve: list[float]) -> Band:
    return band("loss", "plain", [curve])


def test_a_stretch_keeps_its_extremes_and_says_how_long_it_is():
    found = drawn([float(i) for i in range(100 * POINTS)])
    assert (found.stretch, found.broken, len(found.at)) == (100, 0, POINTS)
    assert (found.lows[3], found.means[3], found.highs[3]) == (300.0, 349.5, 399.0)
    assert found.at[0] == 50.5  # the middle of steps 1 to 100


def test_a_short_curve_is_unchanged_and_a_value_that_is_not_finite_is_counted():
    values = [math.sin(i) for i in range(POINTS)]
    assert drawn(values).means == values
    found = drawn([1.0, math.nan, math.inf, 2.0])
    assert (found.broken, [math.isnan(each) for each in found.means]) == (2, [False, True, True, False])


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
