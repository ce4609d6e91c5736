"""Arms of a search run one at a time, fail alone with their class, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.errors import NoJob, UserCodeFailed
from hasten.facts.plan import Plan, make_plan
from hasten.tuning.trials.arms import Arms, Limits
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome
from tuning.jobs.trial_jobs import CACHES

JOBS = Path(__file__).parents[1] / "jobs" / "trial_jobs.py"


def arms(function: str = "job", **limits: float) -> Arms:
    return Arms(f"{JOBS}:{function}", Limits(**limits))


def failure(function: str, plan: Plan | None = None, **limits: float) -> ArmFailed:
    everything = arms(function, **limits)
    with pytest.raises(ArmFailed) as caught, everything.start("tried", plan or Plan()) as arm:
        arm.window(2)
    assert caught.value.arm == "tried"
    return caught.value


def line_of(text: str) -> int:
    return 1 + next(at for at, line in enumerate(JOBS.read_text().splitlines()) if text in line)


def test_two_arms_run_interleaved_windows_and_one_that_fails_leaves_the_other_as_it_was():
    all_arms = arms()
    with all_arms.start("plain", Plan()) as plain:
        with all_arms.start("clipped", make_plan(clipping=1.0)) as clipped:
            windows = [arm.window(3) for arm in (plain, clipped, clipped, plain)]
        with pytest.raises(ArmFailed), all_arms.start("senseless", make_plan(precision="fp17")):
            raise AssertionError("it was built")
        windows.append(plain.window(3))
    assert [window.arm for window in windows] == ["plain", "clipped", "clipped", "plain", "plain"]
    assert {window.steps for window in windows} == {3}
    assert all(window.seconds > 0 for window in windows)


def test_an_error_of_the_jobs_own_code_has_its_line_as_training_reports_it():
    error = failure("job_raising").as_error()
    assert isinstance(error, UserCodeFailed)
    assert error.what.startswith("ZeroDivisionError: in the middle (at optimizer step ")
    assert f"trial_jobs.py:{line_of('in the middle')}, in " in error.where
    assert error.fix == 'fix this line: raise ZeroDivisionError("in the middle")'
    assert error.trace.splitlines()[-1].strip() == 'raise ZeroDivisionError("in the middle")'


def test_an_error_of_hastens_keeps_its_class_and_its_fix():
    error = failure("nothing_here").as_error()
    assert type(error) is NoJob
    assert error.fix


@pytest.mark.parametrize(
    ("function", "outcome", "what"),
    [
        ("job_killed", Outcome.CRASHED, "killed by SIGKILL"),
        ("job_lost_without_a_trace", Outcome.NON_FINITE, "the loss is nan at step 1 or later"),
        ("job_greedy", Outcome.OUT_OF_MEMORY, "allocate memory"),
        ("job_finding_the_disk_full", Outcome.DISK_FULL, "could not be saved"),
        ("empty", Outcome.REFUSED, "has 0 samples"),
    ],
)
@pytest.mark.trap(48)
@pytest.mark.fault("trial crashes, hangs, leaks")
def test_an_arm_that_fails_has_the_class_of_its_failure(function, outcome, what):
    found = failure(function)
    assert found.outcome is outcome
    assert what in found.what


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
def test_a_run_is_released_before_the_one_that_takes_its_place_is_built():
    with arms("one_model_at_a_time").start("plain", Plan()) as arm:
        assert [arm.window(6).steps for _ in range(3)] == [6, 6, 6]  # of ten steps in all, so it is built three times
