"""What joins a plan, in which order, and what is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.facts.choice import Choice, Preserves, Speedup, Value
from hasten.facts.trials import Costs, Proven, Tried
from hasten.tune.search.bounds import FAULT_SECONDS
from hasten.tune.search.joined import Joined
from hasten.tune.search.needed import arm_seconds, end_seconds
from hasten.tune.search.plan_profile import Look, look_at
from hasten.tune.search.round_trials import Heats
from hasten.tune.search.rounds import Stage, Waves
from hasten.tune.search.search_log import Ledger, Options
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed, Fate

JOB = f"{Path(__file__).parents[1] / 'jobs' / 'clocked_jobs.py'}:job"


def choice(technique: str, value: Value = True, preserves: Preserves = Preserves.ROUNDING) -> Choice:
    return Choice(technique=technique, value=value, preserves=preserves)


BF16, HALVES, FUSED = choice("precision", "bf16"), choice("microbatch", 4), choice("fused_optimizer", "fused")
ALLOCATOR, WORKERS = choice("allocator", "keep_freed_memory", Preserves.BITS), choice("loader_workers", 2)


@pytest.fixture(scope="module")
def look() -> Look:
    with Arms(JOB) as arms:
        return look_at(arms, JOB, Preserves.STATISTICS)


def always(choices: Sequence[Choice]) -> bool:
    return True


def test_two_doubtful_choices_join_at_most_and_of_each_technique_one_value():
    base = Joined(sure=(BF16,))
    assert base.with_doubtful([ALLOCATOR, FUSED, HALVES], always).doubtful == (ALLOCATOR, FUSED)
    assert base.with_doubtful([choice("precision", "bf16_weights"), HALVES], always).choices == (BF16, HALVES)
    assert base.with_doubtful([HALVES, choice("microbatch", 2), FUSED], always).doubtful == (HALVES, FUSED)


def test_a_doubtful_choice_joins_where_there_is_time_to_ask_of_it_again():
    found = Joined(sure=(BF16,)).with_doubtful([ALLOCATOR, FUSED], lambda doubtful: FUSED not in doubtful)
    assert found == Joined(sure=(BF16,), doubtful=(ALLOCATOR,))


def test_a_doubtful_choice_gives_way_to_a_winner_of_its_technique():
    base = Joined(sure=(BF16,), doubtful=(HALVES, ALLOCATOR))
    assert base.with_winners([choice("microbatch", 2)]) == Joined(
        sure=(BF16, choice("microbatch", 2)), doubtful=(ALLOCATOR,)
    )


def tried(
    what: Choice, ratio: float, verdict: str, *, pairs: int = 12, on: tuple[Choice, ...] = (), off: float = 0.1
) -> Tried:
    """off: half of the interval."""
    took = Costs(one_off=0, step=1, turn=0, evaluation=0, total=100 / ratio, peak_bytes=0)
    found = Speedup(ratio=ratio, low=ratio - off, high=ratio + off, pairs=pairs)
    return Tried(choice=what, on=on, verdict=verdict, reason="", speedup=found, costs=took)


def waves(look: Look, *known: Tried) -> Waves:
    ledger = Ledger(options=Options(), keep=lambda record: None, tell=lambda doing: None)
    ledger.tried += known
    return Waves(heats=Heats(arms=Arms(JOB), ledger=ledger, plain=look), look_at=lambda base: look)


def stage(look: Look, base: tuple[Choice, ...], since: Sequence[Choice]) -> Stage:
    return Stage(base=Joined(sure=base), look=look, since=since)


@pytest.mark.proof
def test_what_looked_faster_is_asked_again_by_what_it_seemed_to_save_unless_a_proof_failed_or_it_was_sure(look: Look):
    asked = waves(
        look,
        tried(FUSED, 1.05, "no difference"),
        tried(ALLOCATOR, 1.12, "no difference"),
        tried(HALVES, 1.01, "no difference"),
        tried(BF16, 2.0, "faster"),
        tried(WORKERS, 1.2, "no difference"),
        tried(WORKERS, 0.9, "slower"),  # its last trial
    )
    assert asked._looking_faster(asked.ledger.tried, look) == [ALLOCATOR, FUSED]
    assert asked._same_bits(asked.ledger.tried, look) == [ALLOCATOR]


def test_what_three_noisy_windows_make_look_much_faster_has_nothing_tried_on_top_of_it(look: Look):
    asked = waves(look, tried(ALLOCATOR, 1.12, "no difference", pairs=3, off=0.5))
    assert asked._same_bits(asked.ledger.tried, look) == []
    assert asked._looking_faster(asked.ledger.tried, look) == [ALLOCATOR]  # the last heat may ask again


def test_a_remedy_for_what_was_counted_is_asked_again_whatever_it_looked_like_unless_it_was_slower(look: Look):
    computing = replace(look.budget, forward=0.5, backward=0.4, python=0.1)
    faults = replace(look.around, page_faults=0.1 / FAULT_SECONDS)  # a tenth of every step
    treats = {**look.treats, "allocator": "SLOW_ALLOCATION"}
    counted = replace(look, around=faults, treats=treats, budget=computing, step_seconds=1.0)
    asked = waves(look, tried(ALLOCATOR, 0.97, "no difference"))
    assert asked._same_bits(asked.ledger.tried, look) == []
    assert asked._same_bits(asked.ledger.tried, counted) == [ALLOCATOR]
    asked = waves(look, tried(ALLOCATOR, 0.9, "slower"))
    assert asked._looking_faster(asked.ledger.tried, counted) == []


def test_values_of_a_row_go_on_where_the_last_one_tried_was_faster_and_stay_closed_where_it_was_not(look: Look):
    first, second, third = HALVES, choice("microbatch", 2), choice("microbatch", 1)
    assert waves(look)._is_open(third, stage(look, (), []))
    assert waves(look, tried(first, 0.9, "slower"))._is_open(second, stage(look, (), []))  # as two are always tried
    one_row = tried(first, 1.2, "faster"), tried(second, 1.5, "faster")
    assert waves(look, *one_row)._is_open(third, stage(look, (), []))
    one_row = tried(first, 0.9, "slower"), tried(second, 0.8, "slower")
    assert not waves(look, *one_row)._is_open(third, stage(look, (), []))
    assert waves(look, *one_row)._is_open(third, stage(look, (), [BF16]))  # which can turn it round


def test_what_anothers_lead_left_undecided_is_open_until_it_is_decided(look: Look):
    asked = waves(look)
    lead, unknown, known = (
        tried(BF16, 2.0, "faster"),
        tried(HALVES, 1.0, "no difference", pairs=3),
        tried(FUSED, 0.8, "slower"),
    )
    asked.ledger.tried += [lead, unknown, known]
    asked.heats.leave_undecided([lead, unknown, known])
    assert asked._is_open(HALVES, stage(look, (BF16,), [BF16]))
    assert not asked._is_open(FUSED, stage(look, (BF16,), [BF16]))
    asked.heats.leave_undecided([lead])  # another wave, in which nobody asked
    assert asked.heats.undecided == [HALVES]
    asked.heats.leave_undecided([tried(HALVES, 1.0, "no difference")])
    assert asked.heats.undecided == []


def test_what_an_earlier_search_tried_on_the_same_plan_is_asked_of_its_records(look: Look):
    asked = waves(look, tried(FUSED, 0.99, "no difference"))
    assert not asked._is_open(FUSED, stage(look, (BF16,), [BF16]))
    asked.ledger.known = [tried(FUSED, 1.1, "faster", on=(BF16,))]
    assert asked._is_open(FUSED, stage(look, (BF16,), [BF16]))


def test_a_lead_whose_proof_has_failed_keeps_nobody_from_being_tried(look: Look):
    asked, lead = waves(look), tried(WORKERS, 1.6, "faster")
    assert asked.heats.has_lead([lead])
    assert not asked.heats.has_lead([tried(WORKERS, 1.2, "faster")])
    asked.ledger.note(Proven(choice=WORKERS, passes=False, reason="the loss of step 3 is another"))
    assert not asked.heats.has_lead([lead])


def test_the_end_takes_longer_with_every_choice_and_least_where_the_gradients_should_be_the_same(look: Look):
    def seconds(*sure: Choice, doubtful: Sequence[Choice] = ()) -> float:
        return end_seconds(look, look, sure, doubtful, 60.0)

    assert seconds(FUSED) < seconds(choice("channels_last"))
    assert seconds(ALLOCATOR) < seconds(ALLOCATOR, WORKERS) < seconds(ALLOCATOR, doubtful=[WORKERS])
    assert seconds(ALLOCATOR) + 6 <= seconds(choice("precision", "bf16", Preserves.STATISTICS))


def test_trying_an_evaluation_takes_none_of_the_steps_windows(look: Look):
    evaluating, stepping = arm_seconds(look, choice("evaluation_batch", 64)), arm_seconds(look, HALVES)
    assert stepping - evaluating == pytest.approx(5 * (look.window_seconds - look.evaluating_seconds))


def test_of_several_winners_the_best_joins_with_those_that_there_is_time_to_prove_and_the_others_once_there_is(
    look: Look,
):
    layout, half = choice("channels_last"), choice("precision", "bf16", Preserves.STATISTICS)
    winners, look = (half, layout, ALLOCATOR), replace(look, step_seconds=0.05)
    asked, results = waves(look), [tried(each, 1.0, "faster") for each in winners]
    asked.ledger.tried += results
    assert asked._with_winners(look, Joined(), winners, results).sure == winners
    needed = asked.heats.end_seconds(look, (half, ALLOCATOR)) + 1  # and not the seconds of another proof
    began = asked.ledger.began
    asked.ledger.began -= asked.ledger.seconds_left - needed
    found = asked._with_winners(look, Joined(), winners, results)
    assert found.sure == (half, ALLOCATOR)
    assert asked._with_winners(look, Joined(sure=(ALLOCATOR,)), [half, layout], results).sure == (ALLOCATOR, half)
    assert asked._with_winners(look, Joined(sure=(half, ALLOCATOR)), [layout], results).sure == (half, ALLOCATOR)
    assert asked._with_late(look, found).sure == (half, ALLOCATOR)
    assert (asked.ledger.tried[-1].choice, asked.ledger.tried[-1].verdict) == (layout, "faster")
    assert asked.ledger.tried[-1].speedup == results[1].speedup
    assert asked.ledger.tried[-1].reason.endswith("there was no time to prove it")
    asked.ledger.began = began
    asked._late = [layout]
    assert asked._with_late(look, found).sure == (half, ALLOCATOR, layout)


def test_a_plan_that_fails_when_others_are_tried_on_it_is_given_up_with_what_joined_last_and_the_one_before_goes_on(
    look: Look,
):
    asked, asked_of = waves(look), list[tuple[Choice, ...]]()
    stages = [Stage(base=Joined(), look=look), stage(look, (BF16,), [BF16]), stage(look, (BF16, HALVES), [HALVES])]

    def find(found: Stage) -> str:
        asked_of.append(found.base.choices)
        if HALVES in found.base.choices:
            raise ArmFailed("plain", Fate.NON_FINITE, "the loss is nan")
        return "found"

    assert asked._on_what_runs(stages, find) == "found"
    assert asked_of == [(BF16, HALVES), (BF16,)]
    assert [each.base.choices for each in stages] == [(), (BF16,)]
    assert stages[-1].since == [HALVES]
    assert not asked.ledger.is_sound(HALVES)
    assert not asked._is_open(HALVES, stages[-1])
    assert asked.ledger.is_sound(BF16)
    assert asked._is_open(FUSED, stages[-1])


def test_what_was_faster_beside_a_plan_that_was_given_up_is_asked_again_and_so_is_who_stood_back_for_it(look: Look):
    on_it, rival, slower = (
        tried(FUSED, 1.25, "faster", on=(HALVES,)),
        tried(choice("microbatch", 2), 1.2, "faster"),
        tried(WORKERS, 0.9, "slower"),
    )
    asked = waves(look, on_it, rival, slower)
    assert not any(asked._is_open(each.choice, stage(look, (), [])) for each in (on_it, rival, slower))
    asked.ledger.note(Proven(choice=HALVES, passes=False, reason="the plan with it failed", unanswered=True))
    given_up = stage(look, (), [HALVES])
    assert asked._is_open(on_it.choice, given_up)
    assert asked._is_open(rival.choice, given_up)
    assert not asked._is_open(slower.choice, given_up)


def test_the_plain_job_that_fails_ends_the_waves(look: Look):
    def find(found: Stage) -> str:
        raise ArmFailed("plain", Fate.CRASHED, "as planted")

    with pytest.raises(ArmFailed, match="as planted"):
        waves(look)._on_what_runs([Stage(base=Joined(), look=look)], find)


def test_what_joins_late_takes_the_place_of_no_value_that_it_was_not_tried_beside(look: Look):
    other, look = choice("microbatch", 2), replace(look, step_seconds=0.05)
    for on, joins in (((), False), ((other,), True)):
        asked = waves(look, tried(HALVES, 1.2, "faster", on=on))
        asked._late = [HALVES]
        assert (HALVES in asked._with_late(look, Joined(sure=(other,))).sure) is joins


def test_a_heat_leaves_time_for_the_best_of_its_choices_and_not_for_all_of_them(look: Look):
    asked, heat = waves(look), [BF16, choice("channels_last"), ALLOCATOR]
    longest = asked.heats.longest_end(look, (), heat)
    assert longest == max(asked.heats.end_seconds(look, (each,)) for each in heat)
    assert longest < asked.heats.end_seconds(look, tuple(heat))
