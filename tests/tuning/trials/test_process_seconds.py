"""A search counts the seconds of the process around a training: imports, and the checkpoint of its end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hasten.facts.plan import Plan
from hasten.measure.paired_timing import Window
from hasten.tuning.search.objective import Measured, RunLength, costs, totals
from hasten.tuning.trials import process_seconds
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.process_seconds import import_seconds

JOBS = Path(__file__).parents[1] / "jobs" / "trial_jobs.py"


def test_importing_is_timed_in_a_new_interpreter_with_the_libraries_of_the_jobs_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "noted.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(process_seconds, "IMPORTED_BY_TRAIN", ("json",))
    began = time.perf_counter()
    seconds = import_seconds(["noted"])
    assert 0 < seconds <= time.perf_counter() - began
    assert (tmp_path / "imported").exists()


@pytest.mark.proof
def test_libraries_that_cannot_be_imported_are_ignored():
    assert import_seconds(["no_such_library"]) > 0.1


def test_an_arm_saves_a_checkpoint_once_for_each_search():
    arms = Arms(f"{JOBS}:job")
    with arms.start("one", Plan()) as arm:
        arm.window(1)
        saved = arm.ask("saving")["seconds"]
        seconds = arms.process_seconds(arm)
        assert arms.process_seconds(arm) == seconds
    assert saved > 0
    assert seconds > 0


def test_the_planned_run_takes_the_seconds_of_its_process_too():
    arm = Measured(windows=(Window(arm="plain", steps=2, seconds=1.0),), one_off=3.0)
    length = RunLength(steps=10, epochs=1, evaluations=0, process_seconds=2.0)
    assert [window.seconds for window in totals(arm, length)] == [2.0 + 3.0 + 10 * 0.5]
    assert costs(arm, length).one_off == 5.0
