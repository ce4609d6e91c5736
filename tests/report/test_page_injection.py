"""No text of a plan, a record or a log becomes part of the page's own language."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.facts.plan import Plan
from hasten.facts.trials import RECORDS
from hasten.report.display import printable
from hasten.report.page.plan_evidence import Evidence, gathered
from hasten.report.page.plan_page import page_of as page_of_plan
from hasten.report.page.run_log import RunLog, read_run
from hasten.report.page.run_page import page_of as page_of_run
from support.report.hostile import PAYLOADS, of_one_job, with_texts
from support.report.parsed import Page, faults
from support.report.samples import sample_plan, sample_records, sample_run, write_run

EMPTY = page_of_plan(Evidence(plan=Plan(), path="plan.toml", budgets={}))


def rotated(start: int) -> Callable[[], str]:
    """Texts for one field after the other, beginning at one of the payloads."""
    return itertools.cycle([*PAYLOADS[start:], *PAYLOADS[:start]]).__next__


def harmless() -> Callable[[], str]:
    return (f"text {number}" for number in itertools.count()).__next__


def plan_page(texts: Callable[[], str]) -> str:
    """With `texts` in every string field of the plan and of each kind of record."""
    records = [with_texts(record, texts) for record in sample_records(steps=12, seeds=2)]
    return page_of_plan(gathered(of_one_job(with_texts(sample_plan(), texts), records), texts(), records))


def run_page(log: RunLog, texts: Callable[[], str]) -> str:
    return page_of_run(with_texts(log, texts))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    return read_run(write_run(tmp_path_factory.mktemp("runs") / "job-1", sample_run(steps=12)))


@pytest.fixture(scope="module")
def shapes(log: RunLog) -> dict[str, object]:
    return {"plan": Page(plan_page(harmless())).shape, "run": Page(run_page(log, harmless())).shape}


def check(start: int, log: RunLog, shapes: dict[str, object]) -> None:
    for kind, page in (("plan", plan_page(rotated(start))), ("run", run_page(log, rotated(start)))):
        assert faults(page) == []
        assert Page(page).shape == shapes[kind]


def test_there_are_two_hundred_payloads_and_every_kind_of_record_carries_them():
    assert len(set(PAYLOADS)) >= 200
    assert {type(record).__name__ for record in sample_records(steps=2, seeds=1)} == set(RECORDS)
    assert "Time to the target" in plan_page(harmless())


@pytest.mark.parametrize("start", range(0, len(PAYLOADS), 42))
def test_no_text_of_a_plan_its_trials_or_a_run_becomes_an_element(start: int, log: RunLog, shapes: dict[str, object]):
    check(start, log, shapes)


@pytest.mark.proof
@pytest.mark.parametrize("start", range(len(PAYLOADS)))
def test_every_payload_in_every_text_stays_a_text(start: int, log: RunLog, shapes: dict[str, object]):
    check(start, log, shapes)


@settings(max_examples=40)
@given(st.text(st.characters(), min_size=1, max_size=40))
def test_any_text_at_all_is_shown_as_the_text_that_it_is(text: str):
    page = page_of_plan(Evidence(plan=Plan(), path=text, budgets={}))
    assert faults(page) == []
    assert printable(text) in Page(page).text


def test_a_long_text_is_cut_before_it_is_escaped():
    page = page_of_plan(Evidence(plan=Plan(), path="<" * 5000, budgets={}))
    assert "&lt;" * 1999 + "…" in page
    assert "&lt;" * 2000 not in page


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
    assert faults(EMPTY) == []
    assert faults(EMPTY.replace("<main>", f"<main>{planted}"))


def test_the_policy_lets_nothing_in_but_the_style_that_is_there():
    page = Page(plan_page(harmless()))
    policy = next(a["content"] or "" for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in page.style
    assert "@import" not in page.style
