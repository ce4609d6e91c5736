"""What changes training stands on the page, in the table and in the last sentence by its own measure."""

from __future__ import annotations

from dataclasses import replace

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan, PlannedChoice, Speedup
from hasten.facts.trials import Confirmed, Reached, Record
from hasten.report.page.plan_evidence import Evidence, gathered
from hasten.report.page.plan_page import page_of as page_of_plan
from hasten.report.page.plan_page import sentence_of
from hasten.report.plan_sentence import search_sentence
from support.report.parsed import Page, faults
from support.report.samples import CLIPPED, KEPT, RATE, sample_plan, sample_reached, sample_records

END = Choice(technique="stop_at", value="loss", preserves=Preserves.TRAINING, options={"at_most": 0.112})
SOONER = Speedup(ratio=1.56, low=1.48, high=1.64, pairs=5)


def records(*reached: Reached) -> list[Record]:
    return [*(record for record in sample_records(steps=12) if not isinstance(record, Reached)), *reached]


def planned(*choices: Choice) -> Plan:
    return replace(sample_plan(), choices=tuple(PlannedChoice(choice=choice) for choice in choices))


def with_a_target(confirmed: tuple[Choice, ...] = KEPT) -> Evidence:
    found = records(sample_reached(RATE, SOONER, kept=True), sample_reached(CLIPPED, None))
    kept = [replace(each, choices=confirmed) if isinstance(each, Confirmed) else each for each in found]
    return gathered(planned(*confirmed, RATE, END), "plan.toml", kept)


def text_of(evidence: Evidence) -> str:
    html = page_of_plan(evidence)
    assert faults(html) == []
    return " ".join(Page(html).text.split())


def test_the_table_has_every_choice_with_its_seconds_its_seeds_and_what_came_of_it():
    shown = text_of(with_a_target())
    assert "Time to the target" in shown
    assert "2 min 10 s → 1 min 24 s, reached by 5 of 5 seeds" in shown
    assert "2 min 08 s → –, reached by 0 of 1 seed" in shown
    assert "✓ kept" in shown
    assert "· not kept" in shown


def test_what_joined_is_told_at_the_top_beside_the_sentence_of_the_planned_run():
    evidence = with_a_target()
    assert sentence_of(evidence).headline == "3.14× faster: 6 min 52 s → 2 min 11 s"
    shown = text_of(evidence)
    assert (
        "The job's own final loss sooner: 2 min 10 s → 1 min 24 s of training (with learning_rate = 0.2 "
        "(1.56×, 95 % 1.48–1.64, 5 seeds), which changes what is learned; training stops there)." in shown
    )
    assert "judged by the time to the target" in shown


def test_a_plan_with_what_joined_and_its_end_is_the_plan_that_was_measured():
    evidence = with_a_target()
    assert not evidence.edited
    assert [record.choice for record in evidence.gained] == [RATE]
    assert gathered(planned(RATE, END, *KEPT[:-1]), "plan.toml", records(*evidence.gained)).edited
    assert gathered(planned(*KEPT, RATE, END), "plan.toml", records()).edited


def test_the_last_sentence_says_which_seconds_are_compared_and_that_training_changed():
    confirmed = next(record for record in sample_records(steps=12) if isinstance(record, Confirmed))
    reached = (sample_reached(RATE, SOONER, kept=True),)
    headline = "The job's own final loss sooner: 2 min 10 s → 1 min 24 s of training"
    small_print = (
        "with learning_rate = 0.2 (1.56×, 95 % 1.48–1.64, 5 seeds), which changes what is learned; training stops there"
    )
    planned, both = search_sentence(confirmed, 412.3), search_sentence(confirmed, 412.3, reached)
    assert both.headline == f"{planned.headline}. {headline}"
    assert both.small_print == f"{planned.small_print}\n{small_print}"
    alone = search_sentence(None, 412.3, reached)
    assert (alone.headline, alone.small_print) == (headline, small_print)
