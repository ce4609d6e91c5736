"""What the profile of a plan measures before anything is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.facts.choice import Preserves
from hasten.tuning.search.plan_profile import profile_plan
from hasten.tuning.trials.arms import Arms

JOBS = Path(__file__).parents[1] / "jobs" / "clocked_jobs.py"


@pytest.mark.parametrize(
    ("threads", "step", "ranks", "alone"),
    [
        (8, 0.05, 1, 1.5),
        (8, 0.2, 1, 0.0),  # one thread may take eight times as long
        (4, 0.05, 1, 0.0),  # eight are proposed too
        (1, 0.05, 2, 0.0),  # four are proposed to each rank
    ],
)
def test_a_step_is_timed_with_one_thread_where_fewer_threads_are_proposed_and_no_more(
    threads: int, step: float, ranks: int, alone: float, monkeypatch: pytest.MonkeyPatch
):
    for name, value in (("OMP_NUM_THREADS", threads), ("HASTEN_TEST_STEP", step), ("HASTEN_TEST_RANKS", ranks)):
        monkeypatch.setenv(name, str(value))
    job = f"{JOBS}:on_eight_cores"
    around = profile_plan(Arms(job), job, Preserves.ROUNDING).around
    assert around.one_thread == pytest.approx(alone)
    assert around.threads == (threads if alone else 1)
