"""What a search remembers of an earlier one, and what it takes for tried."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Speedup
from hasten.facts.trials import Record, Tried
from hasten.tuning.search.candidates import OUT_OF_TIME
from hasten.tuning.search.search_log import Options, SearchLog

PREFETCH = Choice(technique="prefetch", value=8, preserves=Preserves.BITS)
BF16 = Choice(technique="precision", value="bf16", preserves=Preserves.STATISTICS)
CLIPPING = Choice(technique="clipping", value=1.0, preserves=Preserves.TRAINING)


def tried(choice: Choice, verdict: str = "faster", on: tuple[Choice, ...] = ()) -> Tried:
    return Tried(choice=choice, on=on, verdict=verdict, reason="so it was")


def log_of(*known: Record) -> tuple[SearchLog, Sequence[Record]]:
    kept: list[Record] = []
    return SearchLog(options=Options(), keep=kept.append, report=lambda doing: None, known=known), kept


def test_a_trial_is_remembered_on_top_of_the_same_choices_and_no_others():
    found, _ = log_of(tried(BF16, on=(PREFETCH,)))
    assert found.remembered(BF16, (PREFETCH,))
    assert not found.remembered(BF16, ())


def test_what_was_skipped_or_failed_or_ended_early_is_tried_again():
    early = replace(tried(BF16, "no difference"), cut_short=True)
    assert log_of(tried(BF16, "skipped"), tried(BF16, "failed"), early)[0].remembered(BF16, ()) is None
    assert log_of(tried(BF16, "slower"))[0].remembered(BF16, ())


def test_what_comes_on_top_takes_none_of_the_searchs_time():
    found, _ = log_of()
    with suppress(ZeroDivisionError), found.on_top():
        found.began -= 50  # as if it had taken so long
        raise ZeroDivisionError
    assert 59 < found.seconds_left <= 60
    assert found.seconds > 50


def test_a_choice_that_was_left_out_by_a_bound_is_not_taken_for_tried():
    found, _ = log_of()
    found.skip([(BF16, "at most 0.4 % to gain")], ())
    assert found.last_trial(BF16) is None
    found.add(tried(BF16, "no difference"))
    assert found.last_trial(BF16) is not None


def test_techniques_that_there_was_no_time_for_are_those_of_which_no_value_was_tried():
    found, _ = log_of()
    late = (BF16, OUT_OF_TIME)
    found.skip([late, (PREFETCH, OUT_OF_TIME), (CLIPPING, "it gains nothing")], ())
    found.add(tried(replace(PREFETCH, value=4), "slower"))
    found.skip([late], (PREFETCH,))
    assert found.not_reached == ["precision"]
    found.add(replace(tried(CLIPPING, "no difference"), cut_short=True))
    assert found.not_reached == ["precision", CLIPPING.technique]


def test_what_there_was_no_time_to_try_with_what_joined_the_plan_is_known_by_its_best_trial():
    found, _ = log_of()
    slower, faster = tried(replace(PREFETCH, value=4), "slower"), tried(PREFETCH)
    stopped = replace(tried(CLIPPING, "no difference"), cut_short=True)
    seen = Speedup(ratio=1.27, low=1.1, high=1.4, pairs=8)
    slower, faster = replace(slower, speedup=replace(seen, ratio=0.8)), replace(faster, speedup=seen)
    for each in (slower, faster, stopped, replace(tried(BF16), speedup=seen)):
        found.add(each)
    found.skip([(each, OUT_OF_TIME) for each in (slower.choice, PREFETCH, CLIPPING)], (BF16,))
    assert found.not_combined == [faster]
