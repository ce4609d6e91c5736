"""Both pages for a keyboard, a screen reader and weak eyes: landmarks, headings, names, and contrast."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasten.facts.plan import Plan
from hasten.facts.trials import Ended
from hasten.report.page import render
from hasten.report.page.plan_evidence import gathered
from hasten.report.page.plan_page import page_of as page_of_plan
from hasten.report.page.run_log import read_run
from hasten.report.page.run_page import page_of as page_of_run
from support.report.parsed import Page, faults
from support.report.samples import sample_plan, sample_records, write_run

READABLE, VISIBLE = 4.5, 3.0  # contrast of text and of drawings (WCAG 2.2, 1.4.3 and 1.4.11)


@pytest.fixture(params=["plan", "plan without trials", "no winner", "run"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Page:
    records = sample_records(steps=40)
    html = {
        "plan": lambda: page_of_plan(gathered(sample_plan(), "plan.toml", records)),
        "plan without trials": lambda: page_of_plan(gathered(sample_plan(), "plan.toml", [])),
        "no winner": lambda: page_of_plan(
            gathered(Plan(), "plan.toml", [*records[:3], Ended(choices=(), seconds=61.0)])
        ),
        "run": lambda: page_of_run(read_run(write_run(tmp_path / "run-1"))),
    }[request.param]()
    assert faults(html) == []
    return Page(html)


def tags(page: Page, *names: str) -> list[tuple[str, dict[str, str | None]]]:
    return [(tag, attributes) for tag, attributes in page.tags if tag in names]


def texts(page: Page, tag: str) -> list[str]:
    return [
        re.sub(r"<[^>]*>", "", text).strip() for text in re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", page.source, re.S)
    ]


def test_a_page_has_its_landmarks_once_and_its_language(page: Page):
    for landmark in ("header", "main", "footer"):
        assert len(tags(page, landmark)) == 1
    assert tags(page, "html") == [("html", {"lang": "en"})]


def test_headings_come_in_order_and_name_their_sections(page: Page):
    headings = tags(page, "h1", "h2", "h3", "h4", "h5", "h6")
    assert [tag for tag, _ in headings] == ["h1", *["h2"] * (len(headings) - 1)]
    assert all(texts(page, "h1") + texts(page, "h2"))
    assert [each["aria-labelledby"] for _, each in tags(page, "section")] == [each["id"] for _, each in headings[1:]]


def test_what_names_something_is_there_once(page: Page):
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(names)) == len(names)
    assert {each["aria-labelledby"] for _, each in page.tags if "aria-labelledby" in each} <= {*names}


def test_every_picture_has_a_name_every_chart_a_summary_and_every_other_drawing_is_hidden(page: Page):
    for position, (tag, attributes) in enumerate(page.tags):
        if tag == "svg" and attributes.get("role") == "img":
            assert page.tags[position + 1][0] == "title"
        elif tag == "svg" and "viewbox" not in attributes:  # that one lies inside a picture
            assert attributes.get("aria-hidden") == "true"
    assert all(texts(page, "title"))
    assert all("range" in text for text in texts(page, "desc"))
    assert len(tags(page, "desc")) == len(tags(page, "figure"))


def test_every_table_has_a_caption_and_every_column_and_row_a_name(page: Page):
    assert len(tags(page, "caption")) == len(tags(page, "table")) > 0
    assert all(texts(page, "caption"))
    assert {attributes.get("scope") for _, attributes in tags(page, "th")} == {"col", "row"}
    assert all(texts(page, "th"))


def test_a_table_that_scrolls_can_be_reached_by_keyboard(page: Page):
    scrolling = [attributes for _, attributes in tags(page, "div") if attributes.get("role") == "region"]
    assert all(attributes["tabindex"] == "0" for attributes in scrolling)
    assert len(scrolling) == sum(attributes["class"] == "wide" for _, attributes in tags(page, "table"))
    assert ":focus-visible" in page.style


# ── contrast ────────────────────────────────────────────────────────────────────────────────────────────────────────

STYLE = (Path(render.__file__).with_name("templates") / "style.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.S)
)


def rules() -> Iterator[tuple[str, dict[str, str]]]:
    """Selector, and its properties that are a colour of the scheme."""
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", STYLE):
        yield selector.strip(), dict(re.findall(r"\b(color|background|fill|stroke): var\(--([\w-]+)\)", body))


def pairs() -> Iterator[tuple[str, str, float]]:
    """Colour, what it lies on, and the contrast that it needs."""
    for selector, found in rules():
        behind = found.get("background", "page")
        if "color" in found or "background" in found:
            yield found.get("color", "ink"), behind, READABLE
        for drawn in (found.get("fill"), found.get("stroke")):
            if drawn is not None and drawn != "rule":  # lines between rows say nothing
                yield drawn, "page", READABLE if "text" in selector else VISIBLE


def luminance(colour: str) -> float:
    """As WCAG 2.2 defines it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_colour_stands_out_from_what_it_lies_on(scheme: dict[str, str]):
    assert LIGHT.keys() == DARK.keys()
    found = set(pairs())
    assert len(found) > 15
    for colour, behind, needed in found:
        low, high = sorted(luminance(scheme[name]) for name in (colour, behind))
        assert (high + 0.05) / (low + 0.05) >= needed, f"{colour} on {behind}"
