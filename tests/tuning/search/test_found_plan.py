"""A plan says what a search found, and no more: never is never, and a reason is as long as a reason."""

from __future__ import annotations

from dataclasses import replace

from hasten.facts.choice import Choice
from hasten.facts.plan import Plan, Speedup
from hasten.facts.plan_file import LARGEST_BYTES, plan_from_toml, plan_to_toml
from hasten.facts.trials import Confirmed, Costs, Earned, Surveyed, Tried
from hasten.tuning.search.candidates import UNPROVEN
from hasten.tuning.search.found_plan import plan_found
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome
from support.report.samples import sample_records

SURVEYED = next(record for record in sample_records(steps=2) if isinstance(record, Surveyed))
CONFIRMED = next(record for record in sample_records(steps=2) if isinstance(record, Confirmed))


def costs(*, one_off: float, step: float, total: float) -> Costs:
    return Costs(one_off=one_off, step=step, turn=0.0, evaluation=0.0, total=total, peak_bytes=1)


def found(planned: Costs) -> Plan:
    plain = costs(one_off=1.0, step=0.5, total=100.0)
    return plan_found(SURVEYED, replace(CONFIRMED, plain=plain, planned=planned), [], [])


def test_steps_that_never_pay_back_what_the_plan_costs_are_not_said_to_do_so_at_step_0():
    never = found(costs(one_off=9.0, step=0.5, total=80.0))  # it is faster by its evaluations
    assert never.total is not None
    assert never.total.break_even_step is None
    assert "break_even_step" not in plan_to_toml(never)
    assert plan_from_toml(plan_to_toml(never)).total == never.total
    at_once = found(costs(one_off=1.0, step=0.4, total=80.0))
    assert at_once.total is not None
    assert at_once.total.break_even_step == 0


def test_what_was_not_tried_takes_a_line_for_each_technique():
    def skipped(value: int, reason: str) -> Tried:
        return Tried(choice=Choice(technique="microbatch", value=value), on=(), verdict="skipped", reason=reason)

    measured = Tried(choice=Choice(technique="microbatch", value=32), on=(), verdict="slower", reason="0.9")
    other = replace(skipped(8, "late"), choice=Choice(technique="microbatch", value=8, options={"a": 1}))
    tried = [skipped(16, "late"), skipped(8, "late"), other, skipped(4, "no use"), measured]
    plan = plan_found(replace(SURVEYED, refused={"cache": "in memory already"}), None, tried, [])
    assert [each.value for each in plan.rejected] == [32]
    text = plan_to_toml(plan)
    assert '[not_tried]\nmicrobatch = "16, 8: late; 4: no use"\ncache = "in memory already"\n' in text
    assert plan_from_toml(text).not_tried == plan.not_tried


def test_errors_of_any_length_leave_a_plan_that_can_be_read():
    failure = ArmFailed("a", Outcome.CRASHED, "ValueError: \udcff\x1b[2J\n" + "é" * 10_000)
    choices = [Choice(technique=f"t{number}", value=1) for number in range(200)]
    tried = [Tried(choice=choice, on=(), verdict="failed", reason=f"crashed: {failure.what}") for choice in choices]
    text = plan_to_toml(plan_found(SURVEYED, None, tried, []))
    assert len(text.encode()) < LARGEST_BYTES
    assert plan_from_toml(text).rejected[0].reason.startswith("failed: crashed: ValueError: [2J éé")


def reasons(*tried: Tried, proven: Confirmed | None = CONFIRMED) -> list[str]:
    return [each.reason for each in plan_found(SURVEYED, proven, tried, []).rejected]


def test_a_reason_says_what_was_measured_against_what_and_what_follows():
    seen = Speedup(ratio=1.0, low=0.97, high=1.03, pairs=12)
    shown = "1.00 times as fast with it (95 % interval 0.97 to 1.03, 12 pairs)"
    threads = Choice(technique="threads", value=1)
    same = Tried(choice=threads, on=(), verdict="no difference", reason=f"{seen}", speedup=seen)
    assert reasons(same) == [f"no difference: {shown}; the interval contains 1"]
    early = replace(same, cut_short=True)
    assert reasons(early) == [f"stopped early: {shown}; ended early: another choice was far ahead, or time ran out"]
    faster = replace(same, verdict="faster")
    assert reasons(faster) == [f"faster in its trial: {shown}; no gain in the whole plan"]
    unproven = f"faster in its trial: {shown}; the whole plan with it was not proven to be faster"
    assert reasons(faster, proven=None) == [unproven]
    late = replace(faster, reason=f"{seen}{UNPROVEN}")
    assert reasons(late) == [f"faster in its trial: {shown}, but there was no time to prove it"]


def test_a_plan_states_figures_as_a_person_reads_them():
    seen = Speedup(ratio=1.4391260973012345, low=1.3987654321098765, high=1.5012345678901234, pairs=12)
    choice = CONFIRMED.choices[0]
    confirmed = replace(CONFIRMED, earned=(Earned(choice=choice, speedup=seen, kept=True),))
    text = plan_to_toml(plan_found(SURVEYED, confirmed, [], []))
    assert "speedup = {ratio = 1.439, low = 1.399, high = 1.501, pairs = 12}" in text
