"""The bars of pictures are as long as their values, and their lines reach over the intervals."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from bar_chart import Bar, Chart, drawn
from record_figures import inverse, mean_ratio, share

SVG = "{http://www.w3.org/2000/svg}"


def picture_of(*bars: Bar, origin: float = 0) -> ElementTree.Element:
    return ElementTree.fromstring(drawn(Chart(title="a < b", rows=["group", *bars], below=[], origin=origin)))


def ends(bar: ElementTree.Element) -> tuple[float, float]:
    left = float(bar.attrib["x"])
    return left, left + float(bar.attrib["width"])


def test_bars_are_as_long_as_their_values_and_lines_as_their_intervals():
    picture = picture_of(
        Bar(name="one", value=1, low=1, high=1, text="baseline", ours=False),
        Bar(name="hasten", value=3, low=2, high=4, text="3"),
    )
    (zero, one), (begin, three) = (ends(picture.find(f"{SVG}rect[@class='{kind}']")) for kind in ("other", "ours"))
    assert begin == zero
    assert three - zero == pytest.approx(3 * (one - zero), abs=0.2)
    (line,) = picture.iter(f"{SVG}path")
    low, high = map(float, re.findall(r"^M([\d.]+) [\d.]+H([\d.]+)", line.attrib["d"])[0])
    assert [low, high] == pytest.approx([zero + 2 * (one - zero), zero + 4 * (one - zero)], abs=0.2)


def test_a_value_below_the_origin_is_a_bar_to_the_left():
    worse, better = picture_of(
        Bar(name="worse", value=0.8, low=0.7, high=0.9, text=""),
        Bar(name="better", value=1.1, low=1, high=1.2, text=""),
        origin=1,
    ).iterfind(f"{SVG}rect[@class='ours']")
    assert ends(worse)[1] == pytest.approx(ends(better)[0], abs=0.2)


def test_intervals_of_inverses_and_means_and_shares():
    assert inverse((2, 4, 8)) == (1 / 8, 1 / 4, 1 / 2)
    low, mean, high = mean_ratio([8, 2], [2, 2])
    assert (mean, low * high) == pytest.approx((2, 4))
    assert share(0, 100) == pytest.approx((0, 0, 0.0362), abs=1e-4)
