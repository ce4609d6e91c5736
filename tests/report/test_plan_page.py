"""What the page of a plan says, and that it says nothing that the records do not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hasten.errors import PlanError
from hasten.facts.plan import Plan, make_plan
from hasten.facts.trials import NO_GAIN_ALONE, Budget, Confirmed, Earned, Proven, Record, Surveyed, Tried
from hasten.report.page.plan_evidence import gathered, read_evidence
from hasten.report.page.plan_page import next_command, sentence_of
from hasten.report.page.plan_page import page_of as page_of_plan
from hasten.report.page.tried_choices import reasons_not_tried, rows_of
from hasten.report.plan_sentence import search_sentence
from support.report.parsed import Page, faults
from support.report.samples import (
    AGREES,
    BF16,
    FUSED,
    KEPT,
    LAYOUT,
    PREFETCH,
    THREADS,
    faster,
    sample_plan,
    sample_records,
    write_plan,
)

SEEN = (
    "the first 40 steps: early training loss is inconclusive with 3 pairs: 0.40% worse with the plan (90 % interval "
    "1.10% better to 1.90% worse; 1.00% is tolerated); a test of this size often misses a true harm below 2.10%"
)


def evidence(records: list[Record] | None = None, plan: Plan | None = None):
    return gathered(plan or sample_plan(), "plan.toml", sample_records(steps=40) if records is None else records)


def page(records: list[Record] | None = None, plan: Plan | None = None) -> Page:
    html = page_of_plan(evidence(records, plan))
    assert faults(html) == []
    return Page(html)


def text_of(records: list[Record] | None = None, plan: Plan | None = None) -> str:
    return " ".join(page(records, plan).text.split())


def the(kind: type, records: list[Record] | None = None) -> Any:
    return next(record for record in records or sample_records(steps=40) if isinstance(record, kind))


def with_one(kind: type, change: Callable[[Any], Any]) -> list[Record]:
    return [change(record) if isinstance(record, kind) else record for record in sample_records(steps=40)]


def with_proofs(*proofs: Proven) -> list[Record]:
    found = {each.choice.technique: each for each in proofs}
    return with_one(Proven, lambda record: found.get(record.choice.technique, record))


def test_the_page_begins_with_the_sentence_that_the_search_ended_with():
    confirmed = the(Confirmed)
    assert sentence_of(evidence()) == search_sentence(confirmed, confirmed.plain.total)
    first = re.search(r"<h1>(.*?)</h1>", page().source)
    assert first is not None
    assert first[1] == "3.14× faster: 6\u00a0min\u00a052\u00a0s → 2\u00a0min\u00a011\u00a0s"
    assert first[1].replace("\u00a0", " ") == sentence_of(evidence()).headline


def test_all_that_the_records_hold_has_its_section():
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", page().source) == [
        "The plan",
        "Time to the target",
        "Where the time of the run goes",
        "Where the time of a step goes",
        "What was tried",
        "What was not tried",
        "Training loss",
        "Machine and method",
    ]


def test_a_speed_up_never_stands_without_its_interval_its_baseline_and_its_machine():
    headline, shown = sentence_of(evidence()).headline, text_of()
    assert "3.14×" in headline
    assert "95 % confidence interval of the ratio: 2.93–3.31, from 16 pairs of timings." in shown
    shown = shown.replace(headline, "")
    for each in re.finditer(r"\d×", shown):
        around = shown[each.start() - 40 : each.end() + 40]
        assert re.search(r"\d\.\d\d–\d+\.\d\d", shown[each.end() : each.end() + 30]), around
    assert f"Compared with the baseline on {the(Surveyed).machine}." in shown
    assert "The baseline compared with itself: 1.00× (0.98–1.02, 16 pairs)." in shown


def test_every_number_of_a_bar_stands_in_a_table():
    shown = page().text
    assert the(Budget).arm == "plain"
    for number in ("18.1 ms", "200 µs", "25.2 ms", "39.1 ms", "4.80 ms", "1.90 ms", "89.3 ms", "410 ms"):
        assert number in shown
    for number in ("1.2 s", "6 min 40 s", "2.3 s", "8.2 s"):  # once, steps, 19 starts of epochs, 20 evaluations
        assert number in shown


def test_a_choice_that_earns_nothing_alone_is_said_to_be_proven_with_the_plan():
    assert NO_GAIN_ALONE not in text_of()
    earned = [Earned(choice=choice, speedup=faster(1.02 if choice is FUSED else 1.3), kept=True) for choice in KEPT]
    shown = text_of(with_one(Confirmed, lambda record: replace(record, earned=tuple(earned))))
    assert shown.count(NO_GAIN_ALONE) == 1
    assert f"fused_optimizer = fused {NO_GAIN_ALONE}" in shown


def test_the_top_of_the_page_names_every_choice_of_the_plan():
    names = "precision = bf16, channels_last = true, loader_workers = 4 (start = fork) and fused_optimizer = fused"
    assert f"The plan: {names}." in text_of().partition("Next:")[0]


# ── trials ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_verdicts_stand_in_their_order_with_what_they_were_added_to():
    rows = rows_of(evidence())
    assert [(row.verdict, row.what) for row in rows][:6] == [
        ("kept", "precision = bf16"),
        ("kept", "channels_last = true"),
        ("kept", "loader_workers = 4 (start = fork)"),
        ("kept", "fused_optimizer = fused"),
        ("faster alone", "threads = 6"),
        ("no difference", "channels_last = true"),
    ]
    assert [row.verdict for row in rows][6:] == ["no difference", "slower", "failed", "rejected"]
    assert (rows[1].added_to, rows[5].added_to) == ("precision = bf16", "the baseline")
    assert rows[4].reason == "earns nothing in the whole plan"
    assert [row.what for row in rows][-1] == "tea"


def test_a_trial_without_a_gain_says_why_and_whether_the_choice_is_in_the_plan_all_the_same():
    def reason(ratio: float, spread: float, **changes: Any) -> str:
        found = faster(ratio, spread)
        trial = Tried(choice=PREFETCH, on=(), verdict="no difference", reason=f"{found}", speedup=found, **changes)
        return next(row.reason for row in rows_of(evidence([trial], plan)) if row.what == "prefetch = 8")

    plan = replace(sample_plan(), rejected=())
    assert reason(1.01, 0.02) == "the interval contains 1"
    assert reason(1.005, 0.001) == "a gain below 1 %"
    assert reason(0.994, 0.001) == "slower, but perhaps by less than 1 %"
    assert reason(1.2, 0.3, cut_short=True) == "ended early: another choice was far ahead, or time ran out"
    plan = make_plan(prefetch=8)
    assert reason(1.01, 0.02) == "the interval contains 1; measured again in the whole plan, and kept there"


def test_what_was_not_tried_has_its_reason_and_values_of_one_reason_are_together():
    skipped = [
        Tried(choice=replace(THREADS, value=n), on=on, verdict="skipped", reason="too few cores")
        for on in ((), (BF16,))
        for n in (8, 9)
    ]
    assert reasons_not_tried(evidence([*sample_records(steps=2), *skipped])) == [
        ("in_memory = true", "the time ran out"),
        ("threads = 8, 9", "too few cores"),
        *the(Surveyed).refused.items(),
    ]


# ── proofs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_proofs_have_their_reason_or_the_error_and_bound_of_the_plan():
    assert text_of().count(f"✓ holds {AGREES}") == 3
    assert "gradient error 1.31 × the baseline's (limit 2.00 ×)" in text_of([])


def test_each_answer_has_its_name_and_only_what_holds_counts_as_holding():
    inconclusive = Proven(choice=BF16, passes=True, reason=SEEN, by_losses=True, inconclusive=True)
    unanswered = Proven(choice=FUSED, passes=False, reason="the plan with it failed: killed", unanswered=True)
    failed = Proven(choice=LAYOUT, passes=False, reason="lies beyond the bound")
    shown = text_of(with_proofs(inconclusive))
    assert f"· inconclusive by its loss: {SEEN}" in shown
    assert shown.count("✓ holds") == 3
    shown = text_of(with_proofs(unanswered))
    assert "… not answered the plan with it failed: killed" in shown
    assert "does not hold" not in shown
    shown = text_of(with_proofs(inconclusive, unanswered, failed))
    assert shown.count("✓ holds") == 1
    assert "✕ does not hold lies beyond the bound" in shown


# ── which records count ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_that_was_edited_is_said_to_be():
    edited = replace(sample_plan(), choices=sample_plan().choices[:2])
    assert "The plan was edited after it was measured" in page(plan=edited).text
    assert "The plan was edited" not in page().text


def test_a_plan_without_trials_shows_what_it_states_itself():
    shown = page([]).text
    assert sentence_of(evidence([])).headline == "A plan that states 6 min 52 s → 2 min 11 s"
    assert "The plan was not measured as a whole" in shown
    assert "as the plan states" in shown
    assert "8 cores, 32.0 GiB, no accelerator, torch 2.13.0" in shown
    assert "was never tried" in shown


def test_a_plan_by_hand_promises_nothing():
    plan = make_plan(precision="bf16")
    assert sentence_of(evidence([], plan)).headline == "Not measured: a plan of 1 technique"
    assert "×" not in page([], plan).text
    assert next_command(evidence([], plan)) == "hasten tune JOB"


def test_curves_have_their_verdict_and_a_line_for_each_seed():
    shown = page()
    assert "Equivalent. Loss is equivalent with 4 pairs" in shown.text
    assert "baseline (4 seeds)" in shown.text
    assert sum(attributes.get("class") == "line planned" for _, attributes in shown.tags) == 4


def test_when_the_plan_has_paid_back_is_said_and_never_is_never():
    plan = sample_plan()
    assert plan.total is not None
    assert "longer startup by step 61." in page().text
    never = replace(plan, total=replace(plan.total, break_even_step=None))
    assert "never make up for the longer startup" in page(plan=never).text


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_evidence_is_read_from_beside_the_plan(tmp_path: Path):
    path = write_plan(tmp_path)
    found = read_evidence(path)
    assert found == gathered(sample_plan(), str(path), sample_records())
    assert [choice.technique for choice in found.choices] == [choice.technique for choice in KEPT]


def test_a_file_of_trials_that_holds_something_else_is_refused_with_its_line(tmp_path: Path):
    path = write_plan(tmp_path)
    with (tmp_path / "plan.trials.jsonl").open("a") as file:
        file.write('{"record": "Tea"}\n')
    with pytest.raises(PlanError, match=r"plan\.trials\.jsonl:\d+"):
        read_evidence(path)
