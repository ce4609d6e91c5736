"""The page in a real browser: light and dark, on a telephone and on a wide screen.

It needs a Python with PyQt6-WebEngine, which is this one or that of HASTEN_BROWSER_PYTHON.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hasten.report.page.plan_evidence import gathered
from hasten.report.page.plan_page import page_of as page_of_plan
from hasten.report.page.run_log import read_run
from hasten.report.page.run_page import page_of as page_of_run
from support.report.samples import sample_plan, sample_records, write_run

PROGRAM = Path(__file__).parent.parent / "support" / "report" / "in_browser.py"
WIDTHS = (400, 1400)
SECONDS = 120


def browser() -> str:
    named = os.environ.get("HASTEN_BROWSER_PYTHON")
    return named or (sys.executable if importlib.util.find_spec("PyQt6.QtWebEngineWidgets") else "")


try:
    BROWSER = browser()
except ModuleNotFoundError:  # of PyQt6 itself
    BROWSER = ""

pytestmark = pytest.mark.skipif(
    not BROWSER,
    reason="there is no browser: name a Python that has PyQt6-WebEngine in HASTEN_BROWSER_PYTHON",
)


@pytest.fixture(scope="module", params=["light", "dark"])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """(scheme, folder, what the browser made of each page by (name, width)). Pictures stay for who wants to look."""
    folder = tmp_path_factory.mktemp(request.param)
    pages = {
        "plan": page_of_plan(gathered(sample_plan(), "plan.toml", sample_records())),
        "run": page_of_run(read_run(write_run(folder / "run-1"))),
    }
    for name, html in pages.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    asked = [f"{width}x{folder / name}.html" for name in pages for width in WIDTHS]
    done = subprocess.run(
        [BROWSER, str(PROGRAM), request.param, str(folder), *asked],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    names = itertools.product(pages, WIDTHS)
    return request.param, folder, dict(zip(names, json.loads(done.stdout), strict=True))


def colour(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def brightness(text: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (c / 255 for c in colour(text))
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_a_page_loads_nothing_runs_nothing_and_breaks_no_policy(shown):
    for look in shown[2].values():
        assert (look["scripts"], look["images"], look["links"], look["loaded"], look["said"]) == (0, 0, 0, 0, [])


def test_a_page_fits_its_screen_and_cuts_nothing(shown):
    for (name, width), look in shown[2].items():
        assert (look["width"], look["wanted"]) == (width, width), name
        assert look["beyond"] == [], name
        assert look["cut"] == [], name


def test_the_sentence_stands_on_the_first_screen(shown):
    for name in ("plan", "run"):
        for width in WIDTHS:
            assert shown[2][name, width]["first"] < 300


def test_light_and_dark_have_their_own_colours_and_text_that_can_be_read(shown):
    scheme, _, looks = shown
    for look in looks.values():
        assert look["dark"] == (scheme == "dark")
        paper, ink = brightness(look["page"]), brightness(look["ink"])
        assert (paper < ink) == (scheme == "dark")
        assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) > 7  # WCAG's AAA


def test_curves_are_drawn_in_colours_of_their_own(shown):
    for name, charts in (("plan", 1), ("run", 7)):
        for width in WIDTHS:
            look = shown[2][name, width]
            assert look["charts"] == charts
            assert len(look["lines"]) > charts
            assert "none" not in look["lines"]
            assert len(set(look["lines"])) > 1


def test_what_is_painted_is_no_empty_page(shown):
    scheme, folder, looks = shown
    for name in ("plan", "run"):
        for width in WIDTHS:
            look = looks[name, width]
            picture = Image.open(folder / look["picture"]).convert("RGB")
            assert picture.size == (width, look["height"])
            pixels = np.asarray(picture)[::3, ::3].astype(int)
            inked = (np.abs(pixels - np.array(colour(look["page"]))).max(axis=2) > 24).mean()
            assert 0.02 < inked < 0.4, (scheme, name, width)
