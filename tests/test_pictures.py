"""The bars of pictures are as long as their values, and their lines reach over the intervals."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from bar_chart import WIDTH, Bar, Chart, drawn
from pictures import pictures
from record_figures import mean_ratio, share
from session import of_rules

SVG = "{http://www.w3.org/2000/svg}"


def picture_of(*bars: Bar, mark: float | None = None) -> ElementTree.Element:
    chart = Chart(title="a < b", length="longer is faster", rows=["group", *bars], below="", mark=mark)
    return ElementTree.fromstring(drawn(chart))


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


def test_the_mark_is_where_a_bar_of_its_value_ends():
    picture = picture_of(
        Bar(name="worse", value=0.8, low=0.7, high=0.9, text=""),
        Bar(name="equal", value=1, low=1, high=1, text=""),
        mark=1,
    )
    _, equal = picture.iterfind(f"{SVG}rect[@class='ours']")
    for mark in picture.iterfind(f"{SVG}path[@class='mark']"):
        assert float(re.findall(r"^M([\d.]+) ", mark.attrib["d"])[0]) == pytest.approx(ends(equal)[1], abs=0.2)


def test_every_picture_says_that_longer_is_better_and_its_text_is_no_wider_than_it():
    for path, svg in pictures().items():
        texts = [(each.attrib["y"], each.text or "") for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]
        assert re.search(r"longer is (faster|better)", " ".join(text for _, text in texts).lower()), path
        for y, _ in texts:
            row = " ".join(text for other, text in texts if other == y)
            assert len(row) * 7 < WIDTH, f"{path}: {row}"


def test_intervals_of_means_and_shares():
    low, mean, high = mean_ratio([8, 2], [2, 2])
    assert (mean, low * high) == pytest.approx((2, 4))
    assert share(0, 100) == pytest.approx((0, 0, 0.0362), abs=1e-4)


def test_the_session_shows_the_chosen_findings_and_the_whole_result():
    result = ["  verdict   3 findings in 1 file", "  note      1 more", "  next      hasten explain H101"]
    told = ["Checking a.py", "", "a.py:1:1  H417  bias", "", "a.py:2:1  H101  workers", "    → pass them", "", *result]
    assert [*of_rules(told)] == ["⋮", "a.py:2:1  H101  workers", "    → pass them", "", *result]
