"""The page of a search that came to nothing, that was interrupted, or that was another job's or another machine's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hasten.facts.plan import Plan, Speedup, make_plan
from hasten.facts.scripts.script_places import ScriptPlaces
from hasten.facts.trials import Budget, Confirmed, Ended, Proven, Reached, Record, Surveyed, Tried
from hasten.report.page.plan_evidence import Evidence, gathered
from hasten.report.page.plan_page import next_command, sentence_of
from hasten.report.page.plan_page import page_of as page_of_plan
from support.report.parsed import Page, faults
from support.report.samples import (
    FINGERPRINT,
    PLAIN_TAKES,
    PROVEN_ON,
    THREADS,
    faster,
    sample_plan,
    sample_records,
)

ELSEWHERE = "64 cores of another made-up processor, 512.0 GiB, no accelerator, torch 2.13.0"
NONE = Plan(job=FINGERPRINT, machine=PROVEN_ON)  # as a search writes it that has found nothing
NO_WINNER = (Confirmed, Ended, Reached, Proven)
UNPROVEN = Speedup(ratio=1.1, low=1.04, high=1.15, pairs=12)
APART = Speedup(ratio=1.07, low=1.05, high=1.09, pairs=12)


def text_of(evidence: Evidence) -> str:
    html = page_of_plan(evidence)
    assert faults(html) == []
    return " ".join(Page(html).text.split())


def told(plan: Plan, records: Sequence[Record], path: str = "plan.toml") -> Evidence:
    return gathered(plan, path, records)


def without(*kinds: type) -> list[Record]:
    return [record for record in sample_records(steps=12) if not isinstance(record, kinds)]


def changed(kind: type, **changes: Any) -> list[Record]:
    return [replace(record, **changes) if isinstance(record, kind) else record for record in sample_records(steps=12)]


def begun_elsewhere() -> list[Record]:
    """A search on another machine that was interrupted in its first wave, which begins the file of trials anew."""
    surveyed = next(record for record in sample_records(steps=12) if isinstance(record, Surveyed))
    machine = replace(PROVEN_ON, cores=64, memory_bytes=512 << 30)
    return [
        replace(surveyed, key="other", machine=ELSEWHERE, proven_on=machine),
        Budget(
            arm="plain", data_wait=0.0, transfer=0.0, forward=0.00123, backward=0.002, optimizer=0.0, python=0.0,
            evaluation=0.1, steps=24,
        ),
        Tried(choice=THREADS, on=(), verdict="slower", reason="of the other machine", speedup=faster(0.5)),
    ]  # fmt: skip


# ── another job or machine ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_never_stands_beside_the_seconds_of_another_machine():
    evidence = told(sample_plan(), begun_elsewhere())
    shown = text_of(evidence)
    assert sentence_of(evidence).headline == "A plan that states 6 min 52 s → 2 min 11 s"
    assert "8 cores, 32.0 GiB, no accelerator, torch 2.13.0" in shown
    for other in (ELSEWHERE, "of the other machine", "1.23 ms"):
        assert other not in shown


# ── a search that came to nothing ───────────────────────────────────────────────────────────────────────────────────


def test_a_search_that_ended_without_a_winner_says_so_and_how_long_the_job_takes():
    evidence = told(NONE, [*without(*NO_WINNER), Ended(choices=(), seconds=61.0)])
    assert str(sentence_of(evidence)) == (
        "No faster: nothing that was tried is proven to shorten this job "
        "(the baseline is predicted to take 6 min 45 s for the whole run with startup; "
        "80 % of timings: 6 min 13 s–8 min 06 s)"
    )
    shown = text_of(evidence)
    assert "The plan has no technique: the job runs unchanged." in shown
    assert "was not measured as a whole" not in shown
    assert next_command(evidence) == "hasten train examples/digits.py:job"


def test_the_page_of_a_script_names_the_script_and_runs_it():
    places = ScriptPlaces(script="train.py", sources={}, device="cpu", optimizers=())
    found = told(replace(sample_plan(), script=places), changed(Surveyed, job="train.py --epochs 3"))
    assert next_command(found) == "hasten run --plan plan.toml train.py --epochs 3"
    none = told(replace(NONE, script=places), [*without(*NO_WINNER), Ended(choices=(), seconds=61.0)])
    assert sentence_of(none).headline == "No faster: nothing that was tried is proven to shorten this script"


def test_an_interrupted_search_of_a_script_is_continued_by_words_that_a_shell_reads():
    records = [
        replace(each, job="train.py --epochs 3") if isinstance(each, Surveyed) else each for each in without(*NO_WINNER)
    ]
    assert next_command(told(Plan(), records)) == "hasten tune train.py --epochs 3"
    assert next_command(told(Plan(), records, "a.toml")) == "hasten tune --output a.toml train.py --epochs 3"


def test_a_search_that_goes_on_or_was_interrupted_has_no_plan_yet():
    unfinished = without(*NO_WINNER)
    again = [*unfinished, Ended(choices=(), seconds=61.0), unfinished[0]]
    for records in (unfinished, again):
        evidence = told(NONE, records)
        assert sentence_of(evidence).headline == "No plan yet, after 10 trials"
        assert next_command(evidence) == "hasten tune examples/digits.py:job"
        assert "was not measured as a whole" not in text_of(evidence)  # of no plan there is none to miss


# ── a confirmation that is no proof ─────────────────────────────────────────────────────────────────────────────────


def unproven() -> list[Record]:
    """A whole plan that was faster than the job, and no farther off than the job from itself: no plan came of it."""
    records = changed(Confirmed, speedup=UNPROVEN, noise=APART)
    return [*(record for record in records if not isinstance(record, Ended)), Ended(choices=(), seconds=61.0)]


def test_what_was_not_proven_is_not_told_as_a_plan():
    evidence = told(NONE, unproven())
    assert sentence_of(evidence).small_print == f"the baseline is predicted to take {PLAIN_TAKES}"
    shown = text_of(evidence)
    header = shown.partition("Where the time of the run goes")[0]
    for figure in ("1.10×", "2 min 11 s", "with the plan"):
        assert figure not in header
    assert "The baseline compared with itself: 1.07× (1.05–1.09, 12 pairs)." in header
    time_of_the_run = shown.partition("Where the time of the run goes")[2].partition("Where the time of a step")[0]
    assert "with the plan" not in time_of_the_run
    assert next_command(evidence) == "hasten train examples/digits.py:job"


def test_a_plan_whose_own_choices_were_not_proven_says_why_and_leads_to_another_search():
    evidence = told(sample_plan(), unproven())
    assert "differs from the baseline no more than the baseline from itself" in sentence_of(evidence).headline
    assert sentence_of(evidence).small_print.startswith("1.10×, 95 % confidence interval of the ratio: 1.04–1.15")
    assert next_command(evidence) == "hasten tune examples/digits.py:job"
    assert "with the plan" not in text_of(evidence).partition("The plan")[0]  # no bar shows a gain
    drawn = page_of_plan(evidence).partition(">The plan</h2>")[2].partition("<h2")[0]
    assert "interval other" in drawn
    assert "interval kept" not in drawn


# ── what comes next ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_search_is_sent_over_a_plan_that_was_written_by_hand():
    assert next_command(told(make_plan(precision="bf16"), [], "mine.toml")) == "hasten tune JOB"
