"""What joins a plan, in which order, and what is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hasten.facts.choice import Choice, Preserves, Speedup, Value
from hasten.facts.trials import Costs, Tried
from hasten.tune.arms import Arms
from hasten.tune.ledger import Ledger, Options
from hasten.tune.look import Look, look_at
from hasten.tune.needed import arm_seconds, end_seconds
from hasten.tune.waves import Joined, Waves

JOB = f"{Path(__file__).with_name('clocked_jobs.py')}:job"


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


def tried(what: Choice, ratio: float, verdict: str, *, pairs: int = 5) -> Tried:
    took = Costs(one_off=0, step=1, turn=0, evaluation=0, total=100 / ratio, peak_bytes=0)
    found = Speedup(ratio=ratio, low=ratio - 0.1, high=ratio + 0.1, pairs=pairs)
    return Tried(choice=what, on=(), verdict=verdict, reason="", speedup=found, costs=took)


def waves(look: Look, *known: Tried) -> Waves:
    ledger = Ledger(options=Options(), keep=lambda record: None, tell=lambda doing: None)
    ledger.tried += known
    return Waves(arms=Arms(JOB), ledger=ledger, plain=look, look_at=lambda base: look)


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
    assert asked._looking_faster(asked.ledger.tried) == [ALLOCATOR, FUSED]
    assert asked._same_bits([*asked.ledger.tried, tried(FUSED, 1.2, "no difference")]) == [ALLOCATOR]


def test_values_of_a_row_go_on_where_the_last_one_tried_was_faster_and_stay_closed_where_it_was_not(look: Look):
    smaller = choice("microbatch", 1)
    assert waves(look)._is_open(smaller, look, [])
    assert waves(look, tried(HALVES, 1.5, "faster"))._is_open(smaller, look, [])
    assert not waves(look, tried(HALVES, 0.9, "slower"))._is_open(smaller, look, [])
    assert waves(look, tried(HALVES, 0.9, "slower"))._is_open(smaller, look, [BF16])  # which can turn it round


def test_the_end_takes_longer_with_every_choice_and_least_where_the_gradients_should_be_the_same(look: Look):
    def seconds(*sure: Choice, doubtful: Sequence[Choice] = ()) -> float:
        return end_seconds(look, look, sure, doubtful, 60.0)

    assert seconds(ALLOCATOR) < seconds(FUSED) < seconds(choice("channels_last"))
    assert seconds(ALLOCATOR) < seconds(ALLOCATOR, WORKERS) < seconds(ALLOCATOR, doubtful=[WORKERS])
    assert seconds(ALLOCATOR) + 6 <= seconds(choice("precision", "bf16", Preserves.STATISTICS))


def test_trying_an_evaluation_takes_none_of_the_steps_windows(look: Look):
    evaluating, stepping = arm_seconds(look, choice("evaluation_batch", 64)), arm_seconds(look, HALVES)
    assert stepping - evaluating == pytest.approx(5 * (look.window_seconds - look.evaluating_seconds))
