"""What a person reads of a look at a running job."""

from __future__ import annotations

from dataclasses import replace

from hasten.facts.profiles import DeviceUse, NotMeasured, RunProfile
from hasten.report.terminal.profile_text import budget_rows, run_lines
from support.doctor.run_profiles import HEALTHY, four_times


def told(look: RunProfile) -> dict[str, list[str]]:
    """Texts by their label."""
    found = dict[str, list[str]]()
    for label, text in run_lines(look):
        found.setdefault(label, []).append(text)
    return found


def test_a_healthy_look_needs_no_note():
    lines = told(HEALTHY)
    assert "note" not in lines
    assert lines["step"] == ["100 ms (100 ms to 100 ms), of 64 samples; 400 steps were taken"]


def test_a_device_is_told_with_what_its_memory_holds_also_where_its_kernels_cannot_be_timed():
    use = DeviceUse(busy_seconds=0.0495, steps=50, retries=0, reserved_bytes=2 << 30, fragmented=0.4)
    memory = "; holds 2.00 GiB of memory, 40 % of it in pieces"
    (timed,) = told(replace(HEALTHY, device_use=use))["device"]
    assert timed == "idle for 50 % of such a step" + memory
    (untimed,) = told(replace(HEALTHY, device_use=replace(use, busy_seconds=None)))["device"]
    assert untimed == "its kernels could not be timed: the profiler sees none on this system" + memory


def test_why_no_larger_batch_was_measured_is_noted_also_after_one_that_was():
    none = told(replace(HEALTHY, larger=(), no_larger="the data has 64 samples"))
    assert none["note"] == ["a larger batch was not measured: the data has 64 samples"]
    four = told(replace(HEALTHY, larger=four_times(0.12), no_larger="the data has 64 samples"))
    assert four["note"] == ["more than 4 times this batch was not measured: the data has 64 samples"]


def test_a_checkpoint_that_could_not_be_saved_and_programs_beside_are_notes():
    lines = told(replace(HEALTHY, checkpoint=NotMeasured(why="nothing to tell"), others=0.5))
    assert "checkpoint" not in lines
    assert lines["note"][0] == "no checkpoint could be saved: nothing to tell"
    assert lines["note"][1].startswith("other programs kept 0.5 cores busy meanwhile")


def test_the_parts_of_a_step_are_told_with_their_share():
    rows = budget_rows(HEALTHY)
    assert any("backward pass" in row and "50.0 ms" in row and "50 %" in row for row in rows)
    assert not any("copying to the device" in row for row in rows)  # it took no time
