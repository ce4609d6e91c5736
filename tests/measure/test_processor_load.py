"""What other programs take of the processor, and when that disturbs a measurement."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from hasten.measure.processor_load import Load, LoadClock, busiest
from hasten.tuning.trials.process_tree import processor_seconds

BURN = "import time\nwhile time.process_time() < 0.5: pass"


@pytest.mark.parametrize(
    ("others", "idle", "disturbs"),
    [
        (1.0, 0.0, True),  # a whole core, and the rest is ours
        (1.0, 1.0, False),  # a whole core, and another one is idle
        (0.02, 0.0, False),  # what a quiet machine always does
        (0.3, 0.1, True),  # a browser
    ],
)
def test_other_programs_disturb_where_they_take_more_than_a_few_per_cent_and_no_core_is_free(
    others: float, idle: float, disturbs: bool
):
    assert Load(seconds=2.0, cores=2, others=others, idle=idle).disturbs is disturbs


def test_a_short_time_is_not_counted_exactly_and_a_single_tick_of_the_clock_is_no_load():
    assert Load(seconds=0.1, cores=2, others=0.3, idle=0.0).is_quiet
    assert not Load(seconds=10.0, cores=2, others=0.3, idle=0.0).is_quiet


def test_on_a_large_machine_others_may_have_the_cores_that_nothing_here_needs():
    assert not Load(seconds=2.0, cores=64, others=40.0, idle=16.0).disturbs
    assert Load(seconds=2.0, cores=64, others=40.0, idle=1.0).disturbs


def test_a_stretch_that_leaves_cores_idle_does_not_hide_what_others_took_from_the_next():
    idle, full = Load(seconds=3.0, cores=2, others=0.15, idle=0.85), Load(seconds=3.0, cores=2, others=0.15, idle=0.0)
    assert busiest([idle, full, idle]).disturbs
    assert not busiest([idle, idle]).disturbs
    assert busiest([full, full]) == replace(full, seconds=6.0)


def test_a_program_that_is_not_ours_is_counted():
    clock = LoadClock(lambda: 0.0)
    subprocess.run([sys.executable, "-S", "-c", BURN], check=True)
    load = clock.load()
    assert load.others * load.seconds > 0.4
    assert 0 < load.share <= 1


def test_the_time_of_our_own_programs_is_not_that_of_others():
    before = processor_seconds(os.getpid())
    subprocess.run([sys.executable, "-S", "-c", BURN], check=True)  # it has ended, and was waited for
    assert processor_seconds(os.getpid()) - before > 0.4


def test_the_time_of_a_program_of_ours_that_still_runs_is_counted_too():
    before = processor_seconds(os.getpid())
    script = f"{BURN}\nprint('done', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ours:
        assert ours.stdout is not None
        ours.stdout.readline()
        assert processor_seconds(os.getpid()) - before > 0.4
        ours.communicate(b"\n")
