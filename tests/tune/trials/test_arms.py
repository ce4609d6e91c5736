"""Arms of a trial run one at a time, fail alone with their class, and leave nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hasten.errors import Misconfigured, UserCodeFailed
from hasten.facts.plan import Plan, make_plan
from hasten.tune.trials.arms import Arms, Limits
from hasten.tune.trials.trial_outcome import ArmFailed, Fate
from tune.jobs.trial_jobs import CACHES

JOBS = Path(__file__).parents[1] / "jobs" / "trial_jobs.py"


def arms(function: str = "job", **limits: float) -> Arms:
    return Arms(f"{JOBS}:{function}", Limits(**limits))


def failure(function: str, steps: int = 2, plan: Plan | None = None, **limits: float) -> ArmFailed:
    everything = arms(function, **limits)
    with pytest.raises(ArmFailed) as caught, everything.start("tried", plan or Plan()) as arm:
        arm.window(steps)
    assert caught.value.arm == "tried"
    return caught.value


def test_two_arms_run_windows_of_whole_steps_in_turns():
    all_arms = arms()
    with all_arms.start("plain", Plan()) as plain, all_arms.start("clipped", PLAN) as clipped:
        windows = [arm.window(3) for arm in (plain, clipped, clipped, plain)]
    assert [(window.arm, window.steps) for window in windows] == [
        ("plain", 3),
        ("clipped", 3),
        ("clipped", 3),
        ("plain", 3),
    ]
    assert all(window.seconds > 0 for window in windows)


PLAN = make_plan(clipping=1.0)


def line_of(text: str) -> int:
    return 1 + next(at for at, line in enumerate(JOBS.read_text().splitlines()) if text in line)


def come(condition: Callable[[], bool]) -> None:
    """Wait for what comes by itself; the test's own limit ends it."""
    while not condition():
        os.sched_yield()


def test_an_error_of_the_jobs_own_code_is_told_with_its_line_as_training_tells_it():
    error = failure("job_raising").as_error()
    assert isinstance(error, UserCodeFailed)
    assert error.what.startswith("ZeroDivisionError: in the middle (at optimizer step ")
    assert f"trial_jobs.py:{line_of('in the middle')}, in " in error.where
    assert error.fix == 'mend this line: raise ZeroDivisionError("in the middle")'
    assert error.trace.splitlines()[-1].strip() == 'raise ZeroDivisionError("in the middle")'


def test_an_error_of_hastens_keeps_its_class_and_its_remedy():
    error = failure("nothing_here").as_error()
    assert type(error) is Misconfigured
    assert error.fix


def test_what_the_job_itself_takes_says_from_when_on_an_arm_is_hung():
    everything = arms()
    everything.expect(build_seconds=40, request_seconds=30)
    assert everything._limits == Limits(build_seconds=800, window_seconds=600)
    everything.expect(build_seconds=1, request_seconds=0.01)
    assert everything._limits == Limits(build_seconds=300, window_seconds=120)
    assert everything._given == Limits()
    given = arms(window_seconds=5)
    given.expect(build_seconds=1, request_seconds=1)
    assert given._limits.window_seconds == 5  # what was given stays


def test_a_window_that_the_planned_run_has_no_room_for_begins_it_anew():
    all_arms = arms()
    with all_arms.start("plain", Plan()) as arm:
        assert [arm.window(4).steps for _ in range(5)] == [4] * 5  # of ten steps in all


def test_a_planned_run_shorter_than_a_window_gives_the_steps_that_it_has():
    all_arms = arms()
    with all_arms.start("plain", Plan()) as arm:
        assert [arm.window(100).steps for _ in range(2)] == [10, 10]


@pytest.mark.parametrize(
    ("function", "fate", "what"),
    [
        ("job_raising", Fate.CRASHED, "ZeroDivisionError: in the middle"),
        ("job_killed", Fate.CRASHED, "killed by SIGKILL"),
        ("job_leaving", Fate.CRASHED, "ended with exit code 3"),
        ("job_never_finite", Fate.NON_FINITE, "NonFinite"),
        ("job_lost_without_a_trace", Fate.NON_FINITE, "the loss is nan within the steps from 1 on"),
        ("job_greedy", Fate.OUT_OF_MEMORY, "allocate memory"),
        ("empty", Fate.REFUSED, "has 0 samples"),
        ("not_there", Fate.REFUSED, "not_there"),
    ],
)
def test_an_arm_that_fails_is_told_with_its_class(function, fate, what):
    found = failure(function)
    assert found.fate is fate
    assert what in found.what


def test_a_choice_that_makes_no_sense_is_refused():
    assert failure("job", plan=make_plan(precision="fp17")).fate is Fate.REFUSED


@pytest.mark.trap(48)
def test_an_arm_that_gives_no_answer_is_told_to_hang():
    found = failure("job_endless", window_seconds=1)
    assert found.fate is Fate.HUNG
    assert found.what.startswith("no answer within 1 s; it stands in ")
    assert found.what.endswith(f"trial_jobs.py:{line_of('signal.pause()')}, in endless")


def test_an_arm_that_fails_leaves_the_others_as_they_were():
    all_arms = arms()
    with all_arms.start("plain", Plan()) as plain:
        assert plain.window(2).steps == 2
        with pytest.raises(ArmFailed), all_arms.start("senseless", make_plan(precision="fp17")):
            raise AssertionError("it was built")
        assert plain.window(2).steps == 2


@pytest.mark.trap(49)
def test_no_arm_finds_what_another_one_or_the_caller_has_cached(tmp_path, monkeypatch):
    for name in CACHES:
        monkeypatch.setenv(name, str(tmp_path))
    all_arms = arms("finding_no_cache")
    with all_arms.start("one", Plan()) as one, all_arms.start("beside it", Plan()) as other:
        assert [arm.window(2).steps for arm in (one, other)] == [2, 2]
    with all_arms.start("after both", Plan()) as arm:
        assert arm.window(2).steps == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.trap(49)
def test_a_run_is_gone_before_the_one_that_takes_its_place_is_built():
    with arms("one_model_at_a_time").start("plain", Plan()) as arm:
        assert [arm.window(6).steps for _ in range(3)] == [6, 6, 6]  # of ten steps in all
        assert arm.printed == "a model\n" * 3


def test_what_an_arm_prints_is_never_taken_for_an_answer_and_its_end_is_kept():
    all_arms = arms("job_talkative")
    with all_arms.start("plain", Plan()) as arm:
        assert arm.window(3).steps == 3
        assert arm.window(3).steps == 3
        come(lambda: arm.printed.endswith("and more\n"))
        assert '{"steps": 7, "seconds": 0.001}' in arm.printed


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell a process's state")
def test_an_arm_is_stopped_between_its_windows_and_all_it_started_ends_with_it(tmp_path, monkeypatch):
    journal = tmp_path / "journal"
    monkeypatch.setenv("HASTEN_TEST_JOURNAL", str(journal))
    processes: list[int] = []
    try:
        all_arms = arms("job_starting_another")
        with all_arms.start("plain", Plan()) as arm:
            arm.window(1)
            processes = [int(pid) for pid in journal.read_text().split()]
            come(lambda: {psutil.Process(pid).status() for pid in processes} == {psutil.STATUS_STOPPED})
        come(lambda: not any(map(_lives, processes)))
    finally:
        for pid in filter(_lives, processes):
            os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
