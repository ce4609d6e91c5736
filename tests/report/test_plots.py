from __future__ import annotations

import math

import numpy as np

from hasten.report.plots import as_png, draw_range_test, draw_schedule

STEPS = list(range(20))
RATES = [0.1 * (1 - step / 20) for step in STEPS]


def lines(axes):
    return [np.asarray(line.get_xydata()) for line in axes.get_lines()]


def test_rate_and_momentum_are_drawn_as_given():
    momenta = [0.85 + step / 200 for step in STEPS]
    upper, lower = draw_schedule(STEPS, RATES, momenta).axes
    assert lines(upper)[0].tolist() == [list(pair) for pair in zip(STEPS, RATES, strict=True)]
    assert lines(lower)[0].tolist() == [list(pair) for pair in zip(STEPS, momenta, strict=True)]
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("learning rate", "momentum")
    assert lower.get_xlabel() == "optimizer step"


def test_an_optimizer_without_momentum_has_one_picture():
    (axes,) = draw_schedule(STEPS, RATES, [None] * 20, note="drawn as if constant").axes
    assert axes.get_xlabel() == "optimizer step"
    assert "drawn as if constant" in axes.get_title()


def test_a_range_test_has_a_logarithmic_axis_and_a_mark():
    axes = draw_range_test([1e-3, 1e-2, 1e-1], [2.0, 1.0, math.nan], suggested=0.01).axes[0]
    assert axes.get_xscale() == "log"
    curve, mark = lines(axes)
    assert curve[:2].tolist() == [[1e-3, 2.0], [1e-2, 1.0]]
    assert math.isnan(curve[2][1])
    assert set(mark[:, 0]) == {0.01}
    assert axes.get_legend().get_texts()[0].get_text() == "suggested: 0.01"


def test_the_same_numbers_give_the_same_bytes():
    first, second = (draw_schedule(STEPS, RATES, [None] * 20) for _ in range(2))
    assert as_png(first) == as_png(second)
    assert as_png(first).startswith(b"\x89PNG")
