"""What is found in a look at a running job, and what it is priced at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hasten.doctor.profiling.timed_steps import growth, sampling_error, seconds_of, with_fastest
from hasten.doctor.registry import found_in_run
from hasten.facts.finding import Finding, Price, Severity, ranked, without_repeats
from hasten.facts.profiles import CompilerNote, DeviceUse, LargerBatch, LoopCost, RetainedMemory, RunProfile, Seconds
from support.doctor.run_profiles import HEALTHY, LINE, exactly, four_times


def codes(look: RunProfile) -> list[str]:
    return [each.code for each in ranked(found_in_run(look))]


def test_a_healthy_job_has_no_finding():
    assert found_in_run(HEALTHY) == []


def waiting(**changes: object) -> RunProfile:
    slow = replace(
        HEALTHY,
        waited=Seconds(value=0.06, low=0.055, high=0.065),
        unwaited=Seconds(value=0.04, low=0.035, high=0.045),
        loading=exactly(0.06),
        computing=exactly(0.04),
    )
    return replace(slow, **changes)  # pyright: ignore[reportArgumentType]


def test_waiting_for_data_that_waits_itself_is_priced_by_the_longest_wait_and_the_fastest_steps_without_it():
    line = replace(LINE, in_loading=True, function="__getitem__")
    (found,) = found_in_run(waiting(loading_cpu=0.005, lines=(line,)))
    assert (found.code, found.place) == ("H701", "train.py:7")
    assert found.price == Price(seconds=pytest.approx(6.5), epoch_seconds=pytest.approx(11.0))
    assert "at most 2.9 times as fast" in found.message


def test_what_nobody_reads_beside_a_step_gains_little_more_than_reading_takes():
    (found,) = found_in_run(waiting(waited=exactly(0.015), loading=exactly(0.02), loading_cpu=0.001))
    assert found.price is not None
    assert found.price.seconds == pytest.approx(100 * 0.03)


def test_waiting_for_a_busy_processor_is_another_finding():
    assert codes(waiting(loading_cpu=0.05)) == ["H702"]


def test_one_slow_window_is_no_waiting():
    assert found_in_run(replace(HEALTHY, waited=Seconds(value=0.001, low=0.001, high=0.09))) == []


def test_workers_that_read_beside_the_step_may_cost_more_than_the_wait():
    (found,) = found_in_run(
        waiting(workers=2, waited=exactly(0.01), unwaited=exactly(0.09), computing=exactly(0.04), loading_cpu=0.0)
    )
    assert found.price is not None
    assert found.price.seconds == pytest.approx(6.0)


def test_a_batch_that_takes_no_longer_when_it_is_larger_is_too_small():
    (found,) = found_in_run(replace(HEALTHY, larger=four_times(0.12)))
    assert found.code == "H703"
    assert found.price is not None
    assert found.price.seconds == pytest.approx(100 * (0.099 - 0.021 / 3))
    assert found_in_run(replace(HEALTHY, larger=(), no_larger="few samples")) == []


def test_the_price_of_a_small_batch_holds_what_reading_a_batch_costs_whatever_its_size():
    larger = tuple(replace(each, loading=0.0028) for each in four_times(0.12))
    (found,) = found_in_run(replace(HEALTHY, larger=larger))
    assert found.price is not None
    assert found.price.seconds == pytest.approx(100 * (0.099 - 0.021 / 3 + 0.001 - 0.0018 / 3))


def test_the_price_of_a_small_batch_is_told_by_the_two_largest_that_were_tried():
    tried = (*four_times(0.12), LargerBatch(times=16, step=exactly(0.18), loading=0.016))
    (found,) = found_in_run(replace(HEALTHY, larger=tried))
    assert found.price is not None
    assert found.price.seconds == pytest.approx(100 * (0.099 - 0.06 / 12))
    assert "four times the 64 samples of a batch take 1.2 times as long" in found.message


def test_a_loop_of_many_operations_is_told_with_its_backward_pass():
    line = replace(LINE, operations=96, direct=96)
    (found,) = found_in_run(replace(HEALTHY, lines=(line,), larger=four_times(0.12)))
    assert (found.code, found.place) == ("H704", "train.py:7")
    assert found.price is not None
    assert found.price.seconds == pytest.approx(100 * (0.03 + 0.05))


@pytest.mark.parametrize(
    "line",
    [
        replace(LINE, operations=96, direct=3),
        replace(LINE, operations=96, direct=96, in_a_loop=False),
        replace(LINE, operations=96, direct=96, in_loading=True),
        replace(LINE, operations=8, direct=8),
    ],
    ids=["of layers", "no loop", "of loading", "few"],
)
def test_what_is_no_loop_over_small_operations_is_none(line):
    assert "H704" not in codes(replace(HEALTHY, lines=(line,)))


def test_a_line_in_a_loop_that_begins_no_operation_is_a_stall_and_no_small_batch_either():
    line = replace(LINE, seconds=0.08, high=0.085, timed=0.08)
    assert codes(replace(HEALTHY, lines=(line,), larger=four_times(0.14))) == ["H712"]


def test_a_long_line_that_begins_no_operation_is_a_stall_and_no_small_batch():
    line = replace(LINE, in_a_loop=False, seconds=0.08, high=0.085, timed=0.08)
    (found,) = found_in_run(replace(HEALTHY, lines=(line,), larger=four_times(0.14)))
    assert (found.code, found.place) == ("H712", "train.py:7")
    assert found.price is not None
    assert found.price.seconds == pytest.approx(100 * 0.085)
    assert codes(replace(HEALTHY, lines=(line,), larger=four_times(0.1))) == ["H712"]  # by what is left, who knows
    short = replace(line, seconds=0.03, high=0.03, timed=0.03)
    assert {*codes(replace(HEALTHY, lines=(short,), larger=four_times(0.1)))} == {"H712", "H703"}


@pytest.mark.parametrize(
    "changes", [{"operations": 1}, {"seconds": 0.01}, {"timed": 0.0}, {"in_loading": True}], ids=str
)
def test_a_line_that_computes_or_is_short_or_loads_is_no_stall(changes):
    line = replace(LINE, **({"in_a_loop": False, "seconds": 0.08, "timed": 0.08} | changes))
    assert "H712" not in codes(replace(HEALTHY, lines=(line,)))


@pytest.mark.parametrize("timed", [0.0, 0.00001])
def test_a_line_that_is_long_in_some_steps_only_is_a_stall_where_lines_were_traced(timed):
    rare = replace(LINE, in_a_loop=False, seconds=0.08, high=0.085, timed=timed)
    traced = replace(LINE, line=8, in_a_loop=False, operations=1, timed=0.001)
    (found,) = found_in_run(replace(HEALTHY, lines=(rare, traced), larger=four_times(0.14)))
    assert found.code == "H712"
    assert "in some steps only" in found.message
    assert found_in_run(replace(HEALTHY, lines=(replace(rare, timed=0.0),))) == []


def test_lines_of_a_compiled_model_whose_operations_nobody_counts_are_neither_stalls_nor_loops():
    lines = replace(LINE, seconds=0.03, timed=0.03), replace(LINE, in_a_loop=False, seconds=0.03, timed=0.03)
    assert found_in_run(replace(HEALTHY, operations=0, lines=lines)) == []


def test_a_device_that_waits_for_python_is_told_with_its_idle_seconds():
    use = DeviceUse(busy_seconds=0.04, steps=50, retries=0, reserved_bytes=2 << 30, fragmented=0.0)
    (found,) = found_in_run(replace(HEALTHY, device_use=use))
    assert (found.code, "idle for 60 %" in found.message) == ("H713", True)
    assert found.price is not None
    assert found.price.seconds == pytest.approx(100 * 0.059)
    assert found_in_run(replace(HEALTHY, device_use=replace(use, busy_seconds=0.09))) == []
    assert found_in_run(replace(HEALTHY, device_use=replace(use, busy_seconds=None))) == []


def test_an_allocator_that_had_to_try_again_is_told_with_what_it_holds():
    use = DeviceUse(busy_seconds=0.09, steps=50, retries=3, reserved_bytes=2 << 30, fragmented=0.4)
    (found,) = found_in_run(replace(HEALTHY, device_use=use))
    assert (found.code, found.price) == ("H714", None)
    assert "3 times in 50 steps; 40 % of its 2.00 GiB are fragmented" in found.message


def test_memory_that_is_given_back_is_told_where_a_step_that_keeps_it_is_shorter():
    kept = Seconds(value=0.08, low=0.07, high=0.09)
    both = RetainedMemory(kept=kept, returned=exactly(0.1))
    (found,) = found_in_run(replace(HEALTHY, new_pages=20_000.0, kept_memory=both))
    assert (found.code, found.technique, "78.1 MiB" in found.message) == ("H715", "allocator", True)
    assert found.price is not None
    assert found.price.seconds == pytest.approx(100 * 0.044)
    assert codes(replace(HEALTHY, new_pages=20_000.0, kept_memory=replace(both, kept=exactly(0.096)))) == []
    assert codes(replace(HEALTHY, new_pages=20_000.0)) == []


@pytest.mark.parametrize("kept", [Seconds(value=0.08, low=0.07, high=0.11), exactly(0.08)], ids=["wide", "elsewhere"])
def test_memory_is_only_told_to_be_given_back_where_the_same_steps_were_longer_each_time(kept):
    returned = exactly(0.1) if kept.high > 0.1 else Seconds(value=0.082, low=0.07, high=0.09)
    assert codes(replace(HEALTHY, new_pages=20_000.0, kept_memory=RetainedMemory(kept=kept, returned=returned))) == []


def test_a_small_batch_is_told_by_that_batch_and_not_by_others():
    one, four = four_times(0.3)
    assert codes(replace(HEALTHY, larger=(one, four))) == []
    assert codes(replace(HEALTHY, larger=(replace(one, step=exactly(0.02)), replace(four, step=exactly(0.08))))) == []
    (found,) = found_in_run(replace(HEALTHY, computing=exactly(0.3), larger=four_times(0.12)))
    assert found.price is not None
    assert 9.0 < found.price.seconds <= 10.0


def test_reads_are_told_at_their_line_and_not_as_a_loop():
    line = replace(LINE, operations=64, direct=64, reads=32)
    assert codes(replace(HEALTHY, lines=(line,))) == ["H705"]
    assert codes(replace(HEALTHY, lines=(replace(line, high=0.009, seconds=0.004),))) == []


def test_copies_of_one_function_are_one_finding_with_their_backward_pass():
    one = replace(LINE, in_a_loop=False, copies=1, copied_bytes=1 << 20, copying_seconds=0.01, seconds=0.01, high=0.012)
    (found,) = found_in_run(replace(HEALTHY, lines=(one, replace(one, line=8)), backward_copying=0.02))
    assert found.code == "H706"
    assert "2 copies" in found.message
    assert found.price is not None
    # Copies forward are within their lines; those backward come to them. Each as often again for what follows it.
    assert found.price.seconds == pytest.approx(100 * (2 * 0.02 + 2 * 0.02))


def test_small_copies_in_a_loop_are_the_loops_business():
    turns = LoopCost(operations=256, again=256, times=64, passes=64, backward=0.1, seconds=0.03, high=0.03, timed=0.03)
    small = {"operations": 256, "direct": 256, "copies": 64, "copied_bytes": 1 << 14, "copying_seconds": 0.02}
    line = replace(LINE, seconds=0.03, high=0.03, turns=turns, **small)
    assert codes(replace(HEALTHY, lines=(line,))) == ["H704"]
    assert "H706" in codes(replace(HEALTHY, lines=(replace(line, copied_bytes=1 << 26),)))


def test_memory_that_grows_comes_before_all_that_is_only_slow():
    found = ranked(found_in_run(waiting(loading_cpu=0.0, growth=1 << 20)))
    assert [each.code for each in found] == ["H707", "H701"]
    assert "8,192 more" in found[0].message


def test_an_update_and_an_evaluation_that_are_long_are_told():
    parts = {**HEALTHY.parts, "optimizer": 0.03}
    assert codes(replace(HEALTHY, parts=parts, evaluation_seconds=9.0)) == ["H709", "H708"]


def test_what_the_compiler_says_is_told_at_its_line():
    there = CompilerNote(path="model.py", line=9, why="Tensor.item()", times=2)
    (found,) = found_in_run(replace(HEALTHY, graph_breaks=(there,)))
    assert (found.code, found.place, found.price) == ("H710", "model.py:9", None)
    once = replace(there, why="x.size()[0] == 3", times=1)
    assert found_in_run(replace(HEALTHY, recompiled=(once,))) == []
    (found,) = found_in_run(replace(HEALTHY, recompiled=(once, replace(once, why="self.k == 1"))))
    assert (found.code, "recompiled this 2 times" in found.message) == ("H711", True)


def test_growth_is_only_told_where_memory_grew_in_every_later_round():
    assert growth([(10, 0), (20, 9 << 20), (30, 19 << 20), (40, 29 << 20), (50, 39 << 20), (60, 49 << 20)]) == 1 << 20
    assert growth([(10, 0), (20, 9 << 20), (30, 19 << 20), (40, 29 << 20), (50, 29 << 20), (60, 49 << 20)]) is None
    assert growth([(10, 0), (20, 10), (30, 20), (40, 30), (50, 40), (60, 50)]) is None


def test_findings_are_ranked_by_seconds_and_then_by_what_is_at_stake():
    def finding(code: str, severity: Severity, seconds: float | None) -> Finding:
        price = None if seconds is None else Price(seconds=seconds, epoch_seconds=10.0)
        return Finding(code=code, rule=code, severity=severity, message="", fix="", price=price)

    slow, wrong = finding("a", Severity.SLOW, None), finding("b", Severity.WRONG, None)
    cheap, dear = finding("c", Severity.STYLE, 0.1), finding("d", Severity.SLOW, 5.0)
    fails = finding("e", Severity.FAILS, 0.0)
    assert ranked([slow, wrong, cheap, dear, fails]) == [fails, dear, cheap, wrong, slow]


def test_what_the_model_shows_is_not_told_again_of_its_source():
    def finding(code: str) -> Finding:
        return Finding(code=code, rule=code, severity=Severity.SLOW, message="", fix="", path="job.py")

    both = [finding("H417"), finding("H601")]
    assert [each.code for each in without_repeats(both, ["job.py"])] == ["H601"]
    assert [each.code for each in without_repeats(both, ["other.py"])] == ["H417", "H601"]
    assert [each.code for each in without_repeats(both[:1], ["job.py"])] == ["H417"]


def test_a_price_is_a_bound_on_how_many_times_as_fast_an_epoch_can_be():
    assert Price(seconds=5.0, epoch_seconds=10.0).most_gain == 2.0
    assert Price(seconds=10.0, epoch_seconds=10.0).most_gain == float("inf")


def test_the_fastest_steps_are_those_of_each_batch_and_not_of_the_shortest():
    in_turn = [1.0, 5.0] * 4
    assert with_fastest(seconds_of([3.5, 4.0]), in_turn, 2) == Seconds(value=3.75, low=3.0, high=4.0)
    assert sampling_error(in_turn, 2) == pytest.approx(4.0)
    assert sampling_error(in_turn, 1) == 0.0
