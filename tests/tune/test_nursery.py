"""The process that arms are copied from is shared while it is needed, and another takes its place when it ends."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from pathlib import Path

import psutil
import pytest

from hasten.facts.plan import Plan
from hasten.tune import arms as arms_module
from hasten.tune.arms import Arms
from hasten.tune.fate import ArmFailed, Fate
from hasten.tune.nursery import nursery

JOB = f"{Path(__file__).with_name('trial_jobs.py')}:job"


def test_searches_share_one_and_it_ends_with_the_last(monkeypatch):
    monkeypatch.setattr("hasten.tune.nursery._shared", None)
    first, second = nursery(), nursery()
    assert first is second
    process = psutil.Process(first.pid)
    del first
    assert nursery() is second
    del second
    gc.collect()
    assert not process.is_running()


@pytest.mark.parametrize("library", ["not_there_at_all", "tune.unloadable"])
def test_a_library_that_cannot_be_loaded_beforehand_is_left_to_the_arm(library):
    everything = Arms(JOB)
    everything._libraries = (library,)
    held = nursery()
    before = held.pid
    with everything.start("plain", Plan()) as arm:
        assert arm.window(2).steps == 2
    assert nursery() is held
    assert held.pid == before


@pytest.mark.proof
def test_a_search_goes_on_where_the_process_that_arms_are_copied_from_is_killed(kept_nursery, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # nobody is left to delete the first one's folder
    everything = Arms(JOB)
    with everything.start("first", Plan()) as first:
        os.kill(nursery().pid, signal.SIGKILL)
        assert first.window(2).steps == 2
        with everything.start("second", Plan()) as second:
            assert second.window(2).steps == 2
        assert first.window(2).steps == 2
        leader = psutil.Process(first._copied.leader)
        os.kill(first._copied.keeper, signal.SIGKILL)
        leader.wait()  # nobody is left to kill it but the kernel
    kept_nursery[0] = nursery()


@pytest.mark.proof
def test_a_library_that_ends_the_process_that_loads_it_beforehand_is_left_to_the_arms(
    tmp_path, monkeypatch, kept_nursery
):
    (tmp_path / "deadly.py").write_text("import os\nos._exit(7)")
    (tmp_path / "job.py").write_text("import deadly")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("hasten.tune.libraries.LOADED_ONCE", frozenset({"deadly"}))
    nursery().close()
    everything = Arms(f"{tmp_path}/job.py:job")
    for _ in range(2):
        with (
            pytest.raises(ArmFailed, match="crashed: it ended with exit code 7") as caught,
            everything.start("tried", Plan()),
        ):
            pass
        assert caught.value.fate is Fate.CRASHED
    kept_nursery[0] = nursery()


def test_an_arm_that_the_system_has_killed_for_memory_is_told_so(monkeypatch):
    killed = iter([3, 4])
    monkeypatch.setattr(arms_module, "killed_for_memory", lambda: next(killed))
    everything = Arms(JOB.replace(":job", ":job_killed"))
    with everything.start("tried", Plan()) as arm, pytest.raises(ArmFailed) as caught:
        arm.window(2)
    assert caught.value.fate is Fate.OUT_OF_MEMORY
