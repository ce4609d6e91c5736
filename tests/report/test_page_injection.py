"""Nothing that stands in a plan, a record or a log becomes part of the page's own language."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest

from hasten.facts.plan import Plan
from hasten.facts.trials import RECORDS
from hasten.report.display import printable
from hasten.report.page.markup import Markup, element
from hasten.report.page.plan_evidence import Evidence, gathered
from hasten.report.page.plan_page import page_of_plan
from hasten.report.page.run_log import RunLog, read_run
from hasten.report.page.run_page import page_of_run
from support.report.hostile import PAYLOADS, of_one_job, with_texts
from support.report.parsed import Page, faults
from support.report.samples import sample_plan, sample_records, sample_run, write_run

SAMPLE = range(0, len(PAYLOADS), 21)


def rotated(start: int):
    """Texts for one field after the other, beginning at one of the payloads."""
    texts = itertools.cycle([*PAYLOADS[start:], *PAYLOADS[:start]])
    return lambda: next(texts)


def harmless():
    numbers = itertools.count()
    return lambda: f"text {next(numbers)}"


def plan_page(texts) -> str:
    plan, records = sample_plan(), sample_records(steps=12, seeds=2)
    surveyed = with_texts(records[0], texts)
    hostile = [surveyed, *(with_texts(record, texts) for record in records[1:])]
    return page_of_plan(gathered(of_one_job(with_texts(plan, texts), hostile), texts(), hostile))


def run_page(log: RunLog, texts) -> str:
    return page_of_run(with_texts(log, texts))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    return read_run(write_run(tmp_path_factory.mktemp("runs") / "job-1", sample_run(steps=12)))


def test_there_are_two_hundred_payloads_and_every_kind_of_record_carries_them():
    assert len(set(PAYLOADS)) >= 200
    assert {type(record).__name__ for record in sample_records(steps=2, seeds=1)} == set(RECORDS)


def test_the_page_of_a_plan_that_carries_them_shows_its_trials():
    assert "Time to the target" in plan_page(harmless())


def check_plan(start: int) -> None:
    page = plan_page(rotated(start))
    assert faults(page) == []
    assert Page(page).shape == shape_of_a_plan()


@cache
def shape_of_a_plan():
    return Page(plan_page(harmless())).shape


def check_run(start: int, log: RunLog) -> None:
    page = run_page(log, rotated(start))
    assert faults(page) == []
    assert Page(page).shape == Page(run_page(log, harmless())).shape


@pytest.mark.parametrize("start", SAMPLE)
def test_no_text_of_a_plan_or_its_trials_becomes_an_element(start: int):
    check_plan(start)


@pytest.mark.parametrize("start", SAMPLE)
def test_no_text_of_a_run_becomes_an_element(start: int, log: RunLog):
    check_run(start, log)


@pytest.mark.proof
@pytest.mark.parametrize("start", range(len(PAYLOADS)))
def test_every_payload_in_every_text_stays_a_text(start: int, log: RunLog):
    check_plan(start)
    check_run(start, log)


@pytest.mark.parametrize("payload", PAYLOADS[::7])
def test_a_payload_is_shown_as_the_text_that_it_is(payload: str):
    page = page_of_plan(Evidence(plan=Plan(), path=payload, budgets={}, memory={}))
    assert printable(payload) in Page(page).text
    assert faults(page) == []


@pytest.mark.parametrize(
    "planted",
    [
        "<script>1</script>",
        "<p onclick=x>x</p>",
        '<a href="//x">x</a>',
        "<rect x=1e400% />",
        "<p>\x1b</p>",
        "<style></style>",
    ],
)
def test_what_is_planted_in_a_page_is_found(planted: str):
    page = page_of_plan(Evidence(plan=Plan(), path="plan.toml", budgets={}, memory={}))
    assert faults(page) == []
    assert faults(page.replace("<main>", f"<main>{planted}"))


@pytest.mark.parametrize(
    "name", ["script", "a", "img", "iframe", "style", "link", "base", "form", "object", "foreignObject"]
)
def test_an_element_that_could_load_or_run_cannot_be_built(name: str):
    with pytest.raises(ValueError, match=name):
        element(name)


@pytest.mark.parametrize("name", ["href", "src", "style", "onclick", "xlink_href", "http_equiv"])
def test_an_attribute_that_could_load_or_run_cannot_be_built(name: str):
    with pytest.raises(ValueError, match=r"is no attribute"):
        element("p", **{name: "x"})


def test_text_is_escaped_and_cut_and_markup_is_kept():
    long = element("p", "<" * 5000).html
    assert long.count("&lt;") == 2000
    assert long.endswith("…</p>")
    assert element("p", Markup("<br>"), 'a & "b"', None).html == "<p><br>a &amp; &quot;b&quot;</p>"


def test_the_policy_lets_nothing_in_but_the_style_that_is_there():
    import base64
    import hashlib

    page = Page(plan_page(harmless()))
    policy = next(a["content"] or "" for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert (
        policy == f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert "url(" not in page.style
    assert "@import" not in page.style


def test_what_a_log_says_is_escaped_on_the_whole_way_from_the_file(tmp_path: Path):
    payload = '"><script>alert(1)</script>'
    events = with_texts(sample_run(steps=3), lambda: payload)
    page = page_of_run(read_run(write_run(tmp_path, events)))
    assert faults(page) == []
    assert payload in Page(page).text
