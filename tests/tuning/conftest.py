"""What tests of searches share, and what they plant."""

import time

import pytest

from hasten.tuning.proof import training_runs
from hasten.tuning.trials import arms, trial


@pytest.fixture(autouse=True)
def _the_clock_of_a_job_goes_with_its_test():
    """Where a job with a clock of its own was made in the test's process."""
    yield
    training_runs.time = trial.time = time


@pytest.fixture(autouse=True, scope="module")
def two_threads():
    """In each process that a search begins, so that one is another choice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        yield


@pytest.fixture(autouse=True, scope="session")
def _imports_take_two_seconds():
    """A search starts an interpreter for that, which takes seconds, and on a busy machine several times as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arms, "import_seconds", lambda libraries, always=(): 2.0)
        yield


@pytest.fixture
def plant(monkeypatch):
    """What does harm, and what fails: see joint_jobs.py."""

    def planted(harmful: str = "", failing: str = "") -> None:
        monkeypatch.setenv("HASTEN_TEST_HARMFUL", harmful)
        monkeypatch.setenv("HASTEN_TEST_FAILING", failing)

    return planted
