"""What the profile of a plan measures before anything is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hasten.facts.choice import Preserves
from hasten.tuning.search.objective import RunLength
from hasten.tuning.search.plan_profile import profile_plan
from hasten.tuning.trials.arms import Arm, Arms
from tuning.search.test_rounds import profile

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


@pytest.mark.parametrize(
    ("first", "known", "turn"), [(0.2, None, 0.2), (9.0, None, 0.5), (9.0, 7.0, 7.0), (9.0, 0.1, 0.5)]
)
def test_a_long_first_wait_of_a_job_is_not_taken_for_that_of_every_epoch(
    first: float, known: float | None, turn: float, monkeypatch: pytest.MonkeyPatch
):
    """known: of the baseline, where others are tried on top of a plan."""

    def ask(arm: Arm, do: str, *given: float, **fields: Any) -> dict[str, Any]:
        if do == "turn":
            return {"seconds": 0.5}
        answer = asked(arm, do, *given, **fields)
        firsts = [epoch for epoch, _ in answer.get("turns", []) if not epoch]
        return answer | {"turns": [(epoch, first) for epoch in firsts]} if do == "window" else answer

    asked, job = Arm.ask, f"{JOBS}:job"
    monkeypatch.setattr(Arm, "ask", ask)
    length = RunLength(steps=100, epochs=2, evaluations=0, turn_seconds=known or 0.0)
    baseline = None if known is None else profile(length=length)
    assert profile_plan(Arms(job), job, Preserves.ROUNDING, (), baseline).length.turn_seconds == turn
