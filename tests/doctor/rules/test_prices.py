"""What bounds of findings about running jobs hold, whatever the machine is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hasten.doctor.registry import found_in_run
from hasten.facts.profiles import RetainedMemory, RunProfile
from support.doctor.run_profiles import HEALTHY, exactly

KEPT_MEMORY = RetainedMemory(kept=exactly(0.05), returned=exactly(0.1))


def waiting(**changes: Any) -> RunProfile:
    slow = replace(HEALTHY, waited=exactly(0.06), loading=exactly(0.06), computing=exactly(0.04), loading_cpu=0.05)
    found = replace(slow, **changes)
    return replace(found, unwaited=exactly(found.together.value - found.waited.value))


@pytest.mark.parametrize(
    ("workers", "cores", "loading_cpu", "code"),
    [(0, 1, 0.05, "H702"), (8, 8, 0.05, "H701"), (8, 8, 0.3, "H702"), (8, 1, 0.05, "H702")],
    ids=["alone", "each waits", "each computes", "share a core"],
)
def test_readers_compute_where_they_keep_most_of_their_cores_busy(workers, cores, loading_cpu, code):
    (found,) = found_in_run(waiting(workers=workers, reading_cores=cores, loading_cpu=loading_cpu))
    assert found.code == code
    if found.code == "H701":
        assert found.message.endswith("uses 10 % of 8 cores")


def test_what_a_step_waits_for_bounds_its_gain_where_reading_alone_was_quicker():
    (found,) = found_in_run(waiting(loading=exactly(0.001), loading_cpu=0.001))
    assert found.price is not None
    assert found.price.seconds == pytest.approx(6.0)


def test_huge_pages_are_priced_and_told_by_what_each_of_them_brings():
    huge = replace(HEALTHY, page_bytes=2 << 20, page_seconds=1e-4)
    (grows,) = found_in_run(replace(huge, growth=8 << 20))
    assert grows.price is not None
    assert grows.price.seconds == pytest.approx(100 * 2 * 4e-4)
    (returned,) = found_in_run(replace(huge, new_pages=50.0, kept_memory=KEPT_MEMORY))
    assert "100 MiB of memory" in returned.message


def test_no_less_than_no_memory_is_told_to_be_new():
    found = found_in_run(replace(HEALTHY, new_pages=1.0, growth=8 << 20, kept_memory=KEPT_MEMORY))
    (returned,) = [each for each in found if each.code == "H715"]
    assert returned.message == "0 B of memory are allocated again in every step, beyond what grows"


def test_what_is_waited_for_is_to_be_gained_also_where_batches_that_are_there_already_take_longer():
    (found,) = found_in_run(waiting(computing=exactly(0.12)))
    assert found.price is not None
    assert found.price.seconds == pytest.approx(6.0)
    assert "at most 2.5 times as fast" in found.message


def test_batches_that_may_be_unlike_the_others_are_no_waiting_for_workers():
    shorter = {"workers": 2, "waited": exactly(0.01), "computing": exactly(0.08)}
    assert [each.code for each in found_in_run(waiting(**shorter))] == ["H702"]
    (unlike,) = found_in_run(waiting(**shorter, computing_error=0.01))
    assert unlike.price is not None
    assert unlike.price.seconds == pytest.approx(3.0)
    assert found_in_run(waiting(**(shorter | {"waited": exactly(0.001)}), computing_error=0.02)) == []


def test_nobody_knows_what_workers_cost_where_no_step_could_be_taken_without_them():
    (found,) = found_in_run(waiting(workers=2, not_free="they cannot be copied"))
    assert found.price is not None
    assert found.price.seconds == pytest.approx(10.0)
    assert found.message.startswith("free loading would make a step many times as fast")
