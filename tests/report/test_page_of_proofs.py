"""What the page says of proofs: that no harm was seen is no proof that there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hasten.facts.plan import Plan, PlannedChoice, Proof
from hasten.facts.trials import Proven, Record, Tried
from hasten.report.page.plan_evidence import gathered
from hasten.report.page.plan_page import page_of_plan
from hasten.report.page.tried import rows_of
from support.report.parsed import Page, faults
from support.report.samples import BF16, FUSED, LAYOUT, WORKERS, faster, sample_plan, sample_records

SEEN = (
    "the first 40 steps: early training loss is inconclusive with 3 pairs: +0.40% (90 % interval -1.10% to +1.90%, "
    "positive is worse; margin 1.00%); a true harm below 2.10% would be called harm less often than 80%"
)
NO_HARM = Proven(choice=BF16, passes=True, reason=SEEN, by_losses=True, inconclusive=True)
UNANSWERED = Proven(choice=FUSED, passes=False, reason="the plan with it failed: killed", unanswered=True)


def text_of(records: Sequence[Record], plan: Plan | None = None) -> str:
    html = page_of_plan(gathered(plan or sample_plan(), "plan.toml", records))
    assert faults(html) == []
    return " ".join(Page(html).text.split())


def with_proofs(change: Callable[[Proven], Proven]) -> list[Record]:
    return [change(record) if isinstance(record, Proven) else record for record in sample_records(steps=12)]


def instead(*proofs: Proven) -> list[Record]:
    found = {each.choice.technique: each for each in proofs}
    return with_proofs(lambda record: found.get(record.choice.technique, record))


def test_that_no_harm_was_seen_is_told_with_how_large_a_one_would_have_been_and_is_not_counted_as_holding():
    shown = text_of(instead(NO_HARM))
    assert f"· no harm seen by its losses: {SEEN}" in shown
    assert "proofs that hold 3 of 4 1 with no harm seen" in shown
    assert shown.count("✓ holds") == 3


def test_where_all_proofs_hold_the_figure_says_where():
    assert "proofs that hold 4 of 4 on this job" in text_of(sample_records(steps=12))


def test_an_arm_that_failed_on_the_way_is_no_answer_to_what_was_asked():
    shown = text_of(instead(UNANSWERED))
    assert "… not answered the plan with it failed: killed" in shown
    assert "does not hold" not in shown
    assert "3 of 4 1 not answered" in shown


def test_each_answer_is_counted_by_its_name():
    failed = Proven(choice=LAYOUT, passes=False, reason="lies beyond the bound")
    shown = text_of(instead(NO_HARM, UNANSWERED, failed))
    assert "proofs that hold 1 of 4 1 with no harm seen · 1 failed · 1 not answered" in shown
    assert "✕ does not hold lies beyond the bound" in shown


def test_of_a_proof_that_only_the_plan_states_no_answer_is_given():
    planned = PlannedChoice(choice=BF16, proof=Proof(losses=SEEN))
    shown = text_of([], Plan(choices=(planned,)))
    assert f"as the plan states by its losses: {SEEN}" in shown
    assert "holds" not in shown


def test_a_trial_that_left_before_its_answer_was_known_has_no_verdict():
    trial = Tried(choice=WORKERS, on=(), verdict="no difference", reason="", speedup=faster(1.03, 0.1, 3))
    short = Tried(
        choice=FUSED, on=(), verdict="no difference", reason=str(faster(1.03)), speedup=faster(1.03), cut_short=True
    )
    rows = rows_of(gathered(Plan(), "plan.toml", [trial, short]))
    assert [(row.verdict, row.reason) for row in rows] == [
        ("no difference", ""),
        ("cut short", "it left before its answer was known"),
    ]
    assert "… cut short" in text_of([trial, short], Plan())
