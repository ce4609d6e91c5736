"""What the page of a plan says, and that it says nothing that the records do not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hasten.errors import PlanError, StorageFailed
from hasten.facts.choice import Choice, Speedup
from hasten.facts.plan import Plan, PlannedChoice, Proof, make_plan
from hasten.facts.trials import Budget, Confirmed, Curves, Ended, Noise, Proven, Record, Step, Surveyed, Tried
from hasten.report.page.plan_evidence import gathered, read_evidence
from hasten.report.page.plan_page import next_command, page_of_plan, sentence_of
from hasten.report.page.tried import rows_of
from hasten.report.terminal.search_progress import sentence
from support.report.parsed import Page, faults
from support.report.samples import (
    BF16,
    FUSED,
    KEPT,
    LAYOUT,
    PLAIN_TAKES,
    THREADS,
    faster,
    sample_plan,
    sample_records,
    write_plan,
)


def evidence(records: list[Record] | None = None, plan: Plan | None = None):
    return gathered(plan or sample_plan(), "plan.toml", sample_records(steps=40) if records is None else records)


def page(records: list[Record] | None = None, plan: Plan | None = None) -> Page:
    html = page_of_plan(evidence(records, plan))
    assert faults(html) == []
    return Page(html)


def the(kind: type, records: list[Record] | None = None) -> Any:
    return next(record for record in records or sample_records(steps=40) if isinstance(record, kind))


def with_one(kind: type, change: Callable[[Any], Any]) -> list[Record]:
    return [change(record) if isinstance(record, kind) else record for record in sample_records(steps=40)]


def headings(shown: Page) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", shown.source)


def test_the_page_begins_with_the_sentence_that_the_search_ended_with():
    confirmed = the(Confirmed)
    told = sentence(confirmed, confirmed.plain.total)
    assert sentence_of(evidence()) == told[:1].upper() + told[1:]
    first = re.search(r"<h1>(.*?)</h1>", page().source)
    assert first is not None
    assert first[1].replace("\xa0", " ") == sentence_of(evidence())


def test_where_early_stopping_can_end_the_run_before_every_total_is_told_with_that():
    told = "all of it where early stopping does not end the run before"
    assert told in sentence(the(Confirmed), 1.0, stops_early=True)
    assert told not in sentence(the(Confirmed), 1.0)
    stopping = page(with_one(Surveyed, lambda record: replace(record, stops_early=True)))
    assert told in stopping.text.lower()
    assert told not in page().text.lower()


def test_all_that_the_records_hold_has_its_section():
    assert headings(page()) == [
        "The plan",
        "Time to the target",
        "From the job as it is to the plan",
        "Where the time of the run goes",
        "Where the time of a step goes",
        "Everything that was tried",
        "What is learned",
        "Memory over time",
        "Where this was measured",
        "Next",
    ]


def test_a_speed_up_never_stands_without_its_interval_its_baseline_and_its_machine():
    shown = page().text.replace("\xa0", " ")
    for each in re.finditer(r"\d×", shown):
        assert re.search(r"\d\.\d\d–\d+\.\d\d", shown[each.end() : each.end() + 30]), shown[
            each.start() - 40 : each.end() + 40
        ]
    assert "Against the job as it is, in 16 pairs of windows side by side on" in shown
    assert the(Surveyed).machine in shown
    assert "The job beside itself, where nothing differs, gave 1.00× (0.98–1.02, 16 pairs)." in shown


def test_every_number_of_a_picture_stands_in_a_table():
    shown = page().text
    budget = the(Budget)
    assert budget.arm == "plain"
    for told in ("18.1 ms", "200 µs", "25.2 ms", "39.1 ms", "4.80 ms", "1.90 ms", "89.3 ms", "410 ms"):
        assert told in shown
    for told in ("1.2 s", "6 min 40 s", "2.3 s", "8.2 s"):  # once, steps, 19 starts of epochs, 20 evaluations
        assert told in shown
    for told in ("6 min 52 s", "4 min 14 s", "3 min 21 s", "2 min 23 s", "2 min 11 s", "−2 min 38 s", "−53.1 s"):
        assert told in shown


def test_every_picture_has_a_title_and_every_other_drawing_is_hidden_from_who_cannot_see_it():
    shown = page()
    for position, (tag, attributes) in enumerate(shown.tags):
        if tag == "svg" and attributes.get("role") == "img":
            assert shown.tags[position + 1][0] == "title"
        elif tag == "svg" and "viewbox" not in attributes:  # that one lies inside a picture
            assert attributes.get("aria-hidden") == "true"
    assert sum(tag == "desc" for tag, _ in shown.tags) == 4


def test_every_table_has_a_caption_and_a_name_for_every_column_but_that_of_a_picture():
    shown = page()
    assert sum(tag == "table" for tag, _ in shown.tags) == sum(tag == "caption" for tag, _ in shown.tags) > 5
    cells = [a for tag, a in shown.tags if tag == "td"]
    assert all(a.get("data-label") or "drawn" in (a.get("class") or "") for a in cells)


def test_verdicts_stand_in_their_order_with_what_they_were_beside():
    rows = rows_of(evidence())
    assert [(row.verdict, row.what) for row in rows][:6] == [
        ("kept", "precision = bf16"),
        ("kept", "channels_last = true"),
        ("kept", "loader_workers = 4 (start = fork)"),
        ("kept", "fused_optimizer = fused"),
        ("faster alone", "threads = 6"),
        ("no difference", "channels_last = true"),
    ]
    assert [row.verdict for row in rows][6:] == [
        "no difference",
        "slower",
        "failed",
        "skipped",
        *["refused"] * 3,
        "rejected",
    ]
    assert (rows[1].beside, rows[5].beside) == ("precision = bf16", "the job as it is")
    assert rows[4].reason == "earns nothing in the whole plan"
    assert [row.what for row in rows][-1] == "tea"


def test_a_reason_that_repeats_the_ratio_is_left_out():
    found = faster(0.9)
    trial = Tried(choice=THREADS, on=(), verdict="slower", reason=str(found), speedup=found)
    assert [row.reason for row in rows_of(evidence([trial], Plan()))] == [""]


def test_a_trial_that_was_repeated_stands_once_with_its_last_verdict():
    first = Tried(choice=FUSED, on=(), verdict="failed", reason="no memory")
    rows = rows_of(evidence([first, replace(first, verdict="slower", reason="")], Plan()))
    assert [row.verdict for row in rows] == ["slower"]


def test_proofs_are_told_with_their_error_and_bound():
    shown = page().text
    assert "gradient error 1.31 times the plain job's own (at most 2.00)" in shown
    assert "4 of 4" in shown
    failing = with_one(Proven, lambda record: replace(record, passes=record.choice != BF16))
    assert "3 of 4" in page(failing).text
    assert "✕ does not hold" in page(failing).text


def test_a_choice_that_was_judged_by_its_losses_says_so_and_shows_no_error_and_no_bound():
    told = "the loss is equivalent with 3 pairs"
    by_losses = Proven(choice=BF16, passes=True, reason=told, by_losses=True)
    shown = page(with_one(Proven, lambda record: by_losses if record.choice == BF16 else record)).text
    assert f"✓ holds by its losses: {told}" in " ".join(shown.split())
    assert "1.31" not in shown
    stated = PlannedChoice(choice=BF16, proof=Proof(losses=told))
    alone = page([], Plan(choices=(stated,))).text
    assert f"as the plan states by its losses: {told}" in " ".join(alone.split())


def test_a_choice_that_the_plan_needs_has_no_ratio():
    alone = Speedup(ratio=1, low=1, high=1, pairs=0)
    records = with_one(Confirmed, lambda record: replace(record, earned=(replace(record.earned[0], speedup=alone),)))
    assert "without it the plan does not run" in page(records).text


def test_the_latest_of_what_can_be_there_once_counts():
    again = replace(the(Confirmed), speedup=Speedup(ratio=2.5, low=2.4, high=2.6, pairs=20))
    assert sentence_of(evidence([*sample_records(steps=2), again])).endswith("(2.50×, 95 % 2.40–2.60, 20 pairs)")


def test_a_confirmation_of_the_plan_counts_before_a_later_one_of_another():
    other = replace(the(Confirmed), choices=(BF16,), speedup=Speedup(ratio=1.5, low=1.4, high=1.6, pairs=20))
    assert "3.14×" in sentence_of(evidence([*sample_records(steps=2), other]))


def test_records_of_an_earlier_job_are_left_out_and_counted():
    earlier = [
        replace(the(Surveyed), key="old"),
        Tried(choice=THREADS, on=(LAYOUT,), verdict="failed", reason="of old"),
    ]
    shown = page([*earlier, *sample_records(steps=2)])
    assert "of old" not in shown.text
    assert "2 records of another job or machine were left out." in shown.text


def test_a_search_that_went_on_keeps_what_it_had_found():
    records = sample_records(steps=2)
    assert rows_of(evidence([*records[:9], records[0], *records[9:]])) == rows_of(evidence(records))


def test_only_the_last_way_is_drawn():
    way = [record for record in sample_records(steps=2) if isinstance(record, Step)]
    found = evidence([*way[:3], *way]).way
    assert found == tuple(way)
    assert evidence(list(way[1:])).way == ()


def test_a_plan_that_was_edited_is_said_to_be():
    edited = replace(sample_plan(), choices=sample_plan().choices[:2])
    assert "The plan was changed after it was measured" in page(plan=edited).text
    assert "The plan was changed" not in page().text


def test_a_search_that_found_nothing_says_so():
    nothing = with_one(Confirmed, lambda record: replace(record, choices=(), earned=(), speedup=record.noise))
    shown = page(nothing, plan=Plan())
    told = sentence_of(evidence(nothing, plan=Plan()))
    assert told == f"This job takes {PLAIN_TAKES}; nothing that was tried makes it faster beyond doubt"
    assert "The plan has no technique" in shown.text
    assert "The plan was changed" not in shown.text
    assert next_command(evidence(nothing, plan=Plan())) == "hasten tune examples/digits.py:job"


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (1.01, 1.3, "would take"),
        (0.98, 1.06, "no difference that can be told from noise"),
        (0.8, 0.9, "longer with this plan"),
    ],
)
def test_the_sentence_follows_the_interval(low: float, high: float, told: str):
    found = Speedup(ratio=(low + high) / 2, low=low, high=high, pairs=16)
    assert told in sentence_of(evidence(with_one(Confirmed, lambda record: replace(record, speedup=found))))


def test_a_plan_without_trials_shows_what_it_states_itself():
    shown = page([])
    assert sentence_of(evidence([])) == "A plan that states 2 min 11 s instead of 6 min 52 s"
    assert "No confirmation of the whole plan lies beside it" in shown.text
    assert "as the plan states" in shown.text
    assert "8 cores, 32.0 GiB, no accelerator, torch 2.13.0" in shown.text
    assert "was never tried" in shown.text


def test_a_plan_by_hand_promises_nothing():
    plan = make_plan(precision="bf16")
    assert sentence_of(evidence([], plan)) == "A plan of 1 technique, whose speed was not measured"
    assert "×" not in page([], plan).text
    assert next_command(evidence([], plan)) == "hasten tune JOB"


def test_curves_tell_their_verdict_their_ends_and_what_a_point_is():
    shown = page().text
    assert the(Curves).sentence in shown
    assert "Each point is one step: the line is the mean over the seeds" in shown
    assert "Final loss: the mean of the last tenth of the steps" in shown
    ends = the(Curves).plain[0][-4:]
    assert f"{sum(ends) / 4:#.4g}" in shown


def test_a_confirmed_plan_leads_to_training_by_it():
    assert next_command(evidence()) == "hasten train examples/digits.py:job --plan plan.toml"
    assert "hasten train examples/digits.py:job --plan plan.toml" in page().text


@pytest.mark.parametrize(
    ("step", "told"), [(61, "from step 61 on."), (0, None), (None, "never pays back what it costs at the start.")]
)
def test_when_the_plan_has_paid_back_is_told_and_never_is_never(step: int | None, told: str | None):
    plan = sample_plan()
    assert plan.total is not None
    shown = page(plan=replace(plan, total=replace(plan.total, break_even_step=step))).text
    assert ("what it costs at the start" in shown) == (told is not None)
    assert told is None or told in shown


def test_the_same_records_give_the_same_page():
    assert page_of_plan(evidence()) == page_of_plan(evidence())


def test_evidence_is_read_from_beside_the_plan(tmp_path: Path):
    path = write_plan(tmp_path)
    found = read_evidence(path)
    assert found == gathered(sample_plan(), str(path), sample_records())
    assert [choice.technique for choice in found.choices] == [choice.technique for choice in KEPT]


def test_a_search_without_a_plan_yet_has_its_page(tmp_path: Path):
    path = write_plan(
        tmp_path, records=[record for record in sample_records(steps=2) if not isinstance(record, Confirmed | Ended)]
    )
    path.unlink()
    found = read_evidence(path)
    assert sentence_of(found) == "10 trials, and no plan confirmed yet"
    assert faults(page_of_plan(found)) == []


def test_a_file_of_trials_that_holds_something_else_is_refused_with_its_line(tmp_path: Path):
    path = write_plan(tmp_path)
    with (tmp_path / "plan.trials.jsonl").open("a") as file:
        file.write('{"record": "Tea"}\n')
    with pytest.raises(PlanError, match=r"plan\.trials\.jsonl:\d+"):
        read_evidence(path)


def test_a_file_of_trials_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_plan(tmp_path)
    monkeypatch.setattr("hasten.report.page.plan_evidence.trials_beside", lambda plan: Path("/proc/self/mem"))
    with pytest.raises(StorageFailed, match="cannot be read"):
        read_evidence(path)


def test_a_line_of_trials_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hasten.facts.trials.LONGEST_LINE", 1000)
    path = write_plan(tmp_path, records=[the(Noise)])
    (tmp_path / "plan.trials.jsonl").write_text("x" * 2000)
    with pytest.raises(PlanError, match="larger than a file of trials can be"):
        read_evidence(path)


def test_values_stand_as_the_plan_has_them():
    tricky = Choice(technique="t", value=[1, 2.5, True], options={"a": False})
    assert (
        rows_of(evidence([Tried(choice=tricky, on=(), verdict="failed", reason="")], Plan()))[0].what
        == "t = [1, 2.5, true] (a = false)"
    )
