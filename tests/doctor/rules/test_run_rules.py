"""What the rules of runs find in a profile, and the upper bound of what a fix saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hasten.doctor.profiling.timed_steps import growth
from hasten.doctor.registry import found_in_run
from hasten.facts.finding import Finding, Price, Severity, ranked, without_repeats
from hasten.facts.profiles import CompilerNote, DeviceUse, LargerBatch, Line, RetainedMemory, RunProfile, Seconds
from support.doctor.run_profiles import HEALTHY, LINE, TURNS, exactly, four_times

EPOCH_STEPS = 100


def codes(profile: RunProfile) -> list[str]:
    return [each.code for each in ranked(found_in_run(profile))]


def only(profile: RunProfile) -> tuple[Finding, float]:
    """The one finding, and by how many seconds of a step it is priced."""
    (found,) = found_in_run(profile)
    return found, found.price.seconds / EPOCH_STEPS if found.price is not None else 0.0


def with_lines(*lines: Line, **changes: Any) -> RunProfile:
    return replace(HEALTHY, lines=lines, **changes)


def test_a_healthy_job_has_no_finding():
    assert found_in_run(HEALTHY) == []


def waiting(**changes: Any) -> RunProfile:
    slow = {"waited": exactly(0.06), "loading": exactly(0.06), "computing": exactly(0.04), "loading_cpu": 0.05}
    return replace(HEALTHY, **(slow | changes))


def test_waiting_for_data_is_priced_by_the_fastest_steps_without_it_at_the_slowest_line_of_loading():
    line = replace(LINE, in_loading=True, function="__getitem__")
    waited = Seconds(value=0.06, low=0.055, high=0.065)
    found, seconds = only(waiting(loading_cpu=0.005, waited=waited, lines=(line,)))
    assert (found.code, found.place) == ("H701", "train.py:7")
    assert seconds == pytest.approx(0.065)
    assert "at most 2.9 times as fast" in found.message


@pytest.mark.parametrize(
    ("changes", "code", "seconds"),
    [
        ({"waited": exactly(0.015), "loading": exactly(0.02), "loading_cpu": 0.001}, "H701", 0.03),
        ({"loading": exactly(0.001), "loading_cpu": 0.001}, "H702", 0.064),
        ({"computing": exactly(0.12)}, "H702", 0.06),
        ({"workers": 2, "waited": exactly(0.01), "computing": exactly(0.08)}, "H702", 0.028),
        ({"workers": 8, "reading_cores": 8}, "H701", 0.064),
        ({"workers": 8, "reading_cores": 8, "loading_cpu": 0.3}, "H702", 0.064),
    ],
    ids=[
        "little more than reading alone takes", "what a step waits", "loaded batches that are the long ones",
        "workers beside the step", "workers that wait", "workers that compute",
    ],
)  # fmt: skip
def test_waiting_is_found_by_what_reading_does_meanwhile_and_bounds_what_it_costs(changes, code, seconds):
    found, price = only(waiting(**changes))
    assert found.code == code
    assert price == pytest.approx(seconds)


def test_one_slow_window_is_no_waiting():
    assert found_in_run(replace(HEALTHY, waited=Seconds(value=0.001, low=0.001, high=0.09))) == []


def test_a_batch_that_takes_no_longer_when_it_is_larger_is_too_small():
    found, seconds = only(replace(HEALTHY, larger=four_times(0.12)))
    assert found.code == "H703"
    assert "a batch of 256 samples takes only 1.2 times as long as one of 64" in found.message
    assert seconds == pytest.approx(0.1 * (1 - 0.007 / 0.099))
    larger = (*four_times(0.12), LargerBatch(times=16, step=exactly(0.18)))
    assert only(replace(HEALTHY, larger=larger))[1] == pytest.approx(0.1 * (1 - 0.005 / 0.099))
    assert found_in_run(replace(HEALTHY, larger=(), no_larger="few samples")) == []
    assert found_in_run(replace(HEALTHY, larger=four_times(0.3))) == []


def test_what_a_small_batch_waits_for_is_left_to_the_finding_about_waiting():
    both = {each.code: each for each in found_in_run(waiting(larger=four_times(0.12)))}
    assert both.keys() == {"H702", "H703"}
    price = both["H703"].price
    assert price is not None
    assert price.seconds == pytest.approx(100 * 0.04 * (1 - 0.007 / 0.099))


def test_a_loop_is_priced_with_what_it_calls_and_with_its_part_of_the_backward_pass():
    called = replace(LINE, line=9, operations=96, direct=96)
    other = replace(LINE, line=5, function="loss", operations=288)
    lines = replace(LINE, seconds=0.0, high=0.003, turns=TURNS), called, other
    found, seconds = only(with_lines(*lines))
    assert (found.code, found.place) == ("H704", "train.py:7")
    assert seconds == pytest.approx(0.03 + 2 * 0.25 * 0.05)
    assert codes(with_lines(lines[0], called, larger=four_times(0.12))) == ["H704"]  # and no small batch


@pytest.mark.parametrize(
    "changes",
    [
        {"turns": None},
        {"in_loading": True},
        {"turns": replace(TURNS, operations=9)},
        {"turns": replace(TURNS, over_layers=True)},
        {"turns": replace(TURNS, passes=3)},
        {"turns": replace(TURNS, passes=9), "direct": 3},
    ],
    ids=["no loop", "of loading", "few operations", "over layers", "few passes", "of layers"],
)
def test_what_is_no_loop_over_small_operations_is_none(changes):
    line = replace(LINE, **({"operations": 96, "direct": 96, "turns": TURNS} | changes))
    assert "H704" not in codes(with_lines(line))
    assert "H704" in codes(with_lines(replace(line, in_loading=False, direct=96, turns=TURNS)))


def test_lines_that_no_sample_has_met_make_no_finding_by_the_high_ends_of_their_ranges():
    turns = replace(TURNS, seconds=0.0, high=0.004, timed=0.001)
    line, much = replace(LINE, operations=96, direct=96, turns=turns), replace(LINE, line=8, operations=9_000)
    assert found_in_run(with_lines(line, much)) == []


def test_a_long_line_that_begins_no_operation_is_a_stall_and_no_small_batch():
    line = replace(LINE, seconds=0.08, high=0.085, timed=0.08)
    found, seconds = only(with_lines(line, larger=four_times(0.14)))
    assert (found.code, found.place) == ("H712", "train.py:7")
    assert seconds == pytest.approx(0.085)


@pytest.mark.parametrize(
    "changes", [{"operations": 1}, {"seconds": 0.01}, {"timed": 0.0}, {"in_loading": True}], ids=str
)
def test_a_line_that_computes_or_is_short_or_loads_is_no_stall(changes):
    line = replace(LINE, **({"seconds": 0.08, "timed": 0.08} | changes))
    assert "H712" not in codes(with_lines(line))


def test_lines_of_a_compiled_model_whose_operations_nobody_counts_are_no_stalls():
    assert found_in_run(with_lines(replace(LINE, seconds=0.03, timed=0.03), operations=0)) == []


def test_a_device_that_waits_for_python_is_found_with_its_idle_seconds():
    use = DeviceUse(busy_seconds=0.04, steps=50, retries=0, reserved_bytes=2 << 30, fragmented=0.0)
    found, seconds = only(replace(HEALTHY, device_use=use))
    assert (found.code, "idle for 60 %" in found.message) == ("H713", True)
    assert seconds == pytest.approx(0.059)
    for busy in (0.09, None):
        assert found_in_run(replace(HEALTHY, device_use=replace(use, busy_seconds=busy))) == []


def test_an_allocator_that_had_to_retry_is_found_with_what_it_holds():
    use = DeviceUse(busy_seconds=0.09, steps=50, retries=3, reserved_bytes=2 << 30, fragmented=0.4)
    found, _ = only(replace(HEALTHY, device_use=use))
    assert (found.code, found.price) == ("H714", None)
    assert "3 times in 50 steps; 40 % of its 2.00 GiB are fragmented" in found.message


KEPT = RetainedMemory(kept=Seconds(value=0.08, low=0.07, high=0.09), returned=exactly(0.1))


def test_memory_that_is_returned_is_found_where_a_step_that_keeps_it_is_shorter():
    found, seconds = only(replace(HEALTHY, new_pages=20_000.0, kept_memory=KEPT))
    assert (found.code, found.technique, "78.1 MiB" in found.message) == ("H715", "allocator", True)
    assert seconds == pytest.approx(0.044)
    grows = codes(replace(HEALTHY, new_pages=1.0, growth=8 << 20, kept_memory=KEPT))
    assert grows == ["H707", "H715"]


@pytest.mark.parametrize(
    "both",
    [
        None,
        replace(KEPT, kept=exactly(0.096)),
        replace(KEPT, kept=Seconds(value=0.08, low=0.07, high=0.11)),
        RetainedMemory(kept=exactly(0.08), returned=Seconds(value=0.082, low=0.07, high=0.09)),
    ],
    ids=["not measured", "little", "wide", "of other steps"],
)
def test_memory_is_only_returned_where_the_same_steps_were_longer_each_time(both):
    assert codes(replace(HEALTHY, new_pages=20_000.0, kept_memory=both)) == []


def test_reads_are_found_at_their_line_and_not_as_a_loop():
    line = replace(LINE, operations=64, direct=64, reads=32, turns=TURNS)
    assert codes(with_lines(line)) == ["H705"]
    assert codes(with_lines(replace(line, high=0.009, seconds=0.004))) == []


def test_copies_of_one_function_are_one_finding_with_their_backward_pass():
    one = replace(LINE, copies=1, copied_bytes=1 << 20, copying_seconds=0.01, seconds=0.01, high=0.012)
    found, seconds = only(with_lines(one, replace(one, line=8)))
    assert (found.code, "2 copies" in found.message) == ("H706", True)
    # Copies forward are within their lines; those backward come to them. Each as often again for what follows it.
    assert seconds == pytest.approx(2 * 0.02 + 2 * 0.02)
    in_a_loop = replace(one, operations=96, direct=96, copies=64, copying_seconds=0.02, turns=TURNS)
    assert codes(with_lines(in_a_loop)) == ["H704"]


def test_memory_that_grows_comes_before_all_that_is_only_slow():
    found = ranked(found_in_run(waiting(loading_cpu=0.0, growth=1 << 20)))
    assert [each.code for each in found] == ["H707", "H701"]
    assert "8,192 more" in found[0].message
    _, seconds = only(replace(HEALTHY, growth=8 << 20, page_bytes=2 << 20, page_seconds=1e-4))
    assert seconds == pytest.approx(2 * 4e-4)


def test_an_update_and_an_evaluation_that_are_long_are_found():
    parts = {**HEALTHY.parts, "optimizer": 0.03}
    assert codes(replace(HEALTHY, parts=parts, evaluation_seconds=9.0)) == ["H709", "H708"]


def test_what_the_compiler_logs_is_found_at_its_line():
    there = CompilerNote(path="model.py", line=9, why="Tensor.item()", times=2)
    (found,) = found_in_run(replace(HEALTHY, graph_breaks=(there,)))
    assert (found.code, found.place, found.price) == ("H710", "model.py:9", None)
    once = replace(there, why="x.size()[0] == 3", times=1)
    assert found_in_run(replace(HEALTHY, recompiled=(once,))) == []
    (found,) = found_in_run(replace(HEALTHY, recompiled=(once, replace(once, why="self.k == 1"))))
    assert (found.code, "recompiled this 2 times" in found.message) == ("H711", True)


def test_memory_grows_only_where_it_grew_in_every_later_round():
    assert growth([(10, 0), (20, 9 << 20), (30, 19 << 20), (40, 29 << 20), (50, 39 << 20), (60, 49 << 20)]) == 1 << 20
    assert growth([(10, 0), (20, 9 << 20), (30, 19 << 20), (40, 29 << 20), (50, 29 << 20), (60, 49 << 20)]) is None
    assert growth([(10, 0), (20, 10), (30, 20), (40, 30), (50, 40), (60, 50)]) is None


def finding(code: str, severity: Severity = Severity.SLOW, seconds: float | None = None) -> Finding:
    price = None if seconds is None else Price(seconds=seconds, whole_seconds=10.0)
    return Finding(code=code, rule=code, severity=severity, message="", fix="", path="job.py", price=price)


def test_what_spoils_a_run_comes_first_then_the_most_seconds_then_the_highest_expected_cost():
    slow, wrong, cheap = finding("a"), finding("b", Severity.WRONG), finding("c", Severity.STYLE, 0.1)
    dear, fails = finding("d", Severity.SLOW, 5.0), finding("e", Severity.FAILS, 0.0)
    costly, slight = finding("f", Severity.COSTLY), finding("A", Severity.SLIGHT)
    order = [fails, wrong, dear, cheap, costly, slow, slight]
    assert ranked([slight, slow, wrong, cheap, dear, costly, fails]) == order
    assert dear.price is not None
    assert dear.price.most_gain == 2.0


def test_what_the_model_shows_is_not_reported_again_of_its_source():
    both = [finding("H417"), finding("H601")]
    assert [each.code for each in without_repeats(both, ["job.py"])] == ["H601"]
    assert [each.code for each in without_repeats(both, ["other.py"])] == ["H417", "H601"]
