"""What changes training is judged by the time to what the job itself comes to, and by nothing else."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

import hasten
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.plan import Plan
from hasten.facts.trials import Doing, Reached, Record, Tried
from hasten.tuning.search.found_plan import plan_found
from hasten.tuning.search.plan_search import Search
from hasten.tuning.search.search_log import Options, SearchLog
from hasten.tuning.search.target import PAIRS, TargetGain, TargetTrials, target_metric
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed
from tuning.jobs.target_jobs import job

JOBS = Path(__file__).parents[1] / "jobs" / "target_jobs.py"


def changing(technique: str, value: Value) -> Choice:
    return Choice(technique=technique, value=value, preserves=Preserves.TRAINING)


def rate(value: float) -> Choice:
    return changing("learning_rate", value)


class Judged:
    """One contest, and all that it said."""

    def __init__(self, function: str, *choices: Choice, base: tuple[Choice, ...] = ()) -> None:
        self.records, self.doing, self.won = list[Record](), list[Doing](), list[TargetGain]()
        arms = Arms(f"{JOBS}:{function}")
        log = SearchLog(options=Options(), keep=self.records.append, report=self.doing.append)
        trials = TargetTrials(
            arms=arms, log=log, metric=target_metric(arms, Plan()), first_seed=0, steps=20, run_seconds=25.0
        )
        with suppress(ArmFailed):
            found = trials.fastest(base, choices)
            self.won += [] if found is None else [found]

    def tried(self) -> dict[str, tuple[str, str]]:
        tried = [record for record in self.records if isinstance(record, Tried)]
        return {str(record.choice): (record.verdict, record.reason) for record in tried}

    def reached(self) -> list[Reached]:
        return [record for record in self.records if isinstance(record, Reached)]


@pytest.mark.proof
def test_a_rate_that_was_too_low_is_found_and_the_run_ends_where_the_job_would_have_ended():
    judged = Judged("job", rate(0.1), rate(0.025))
    assert judged.tried()["learning_rate = 0.025"][0] == "slower"
    verdict, reason = judged.tried()["learning_rate = 0.1"]
    assert verdict == "faster"
    assert "in 15.0 s and 12 steps instead of 25.0 s and 20 steps" in reason
    [gained] = judged.won
    end = hasten.train(job()).results["loss"]
    assert [str(choice) for choice in gained.choices] == ["learning_rate = 0.1", f"stop_at = loss (at_most = {end})"]
    final = judged.reached()[-1]
    assert final.seeds == tuple(range(1, 1 + PAIRS))
    assert final.speedup is not None
    assert final.speedup.ratio == pytest.approx(25 / 15)
    assert set(final.seconds_with) == {15.0}


def test_a_choice_that_never_comes_there_has_lost_however_fast_its_steps_are():
    judged = Judged("too_fast_at_twice_the_rate", rate(2.4))
    assert judged.tried() == {"learning_rate = 2.4": ("slower", judged.reached()[0].sentence)}
    said = r"from seed 0 it never reached loss \S+, the result with which the plan without it ends"
    assert re.fullmatch(said, judged.reached()[0].sentence)
    assert judged.reached()[0].seconds_with == (None,)
    assert not judged.won
    assert {doing.what for doing in judged.doing} == {
        "time to the target, seed 0: the plan without them",
        "time to the target, seed 0: learning_rate = 2.4",
    }
    assert (judged.doing[0].whole, judged.doing[0].seconds_left) == (20, pytest.approx(25 * (12 - 1 / 20)))
    left = [doing.seconds_left for doing in judged.doing if doing.seconds_left is not None]
    assert left == sorted(left, reverse=True)


@pytest.mark.trap(51)
def test_a_run_that_becomes_infinite_has_failed_and_ends_nothing_else():
    judged = Judged("infinite_at_twice_the_rate", rate(3.8))
    verdict, reason = judged.tried()["learning_rate = 3.8"]
    assert verdict == "failed"
    assert reason.startswith("not finite: NonFinite")
    assert not judged.won


@pytest.mark.proof
def test_one_seed_from_which_it_never_comes_there_is_one_too_many():
    judged = Judged("steeper_from_odd_seeds", rate(0.1))
    assert judged.reached()[0].seconds_with[0] is not None
    assert judged.reached()[1].seeds == (1,)
    assert judged.tried()["learning_rate = 0.1"][0] == "slower"
    assert not judged.won


@pytest.mark.proof
@pytest.mark.trap(50)
def test_a_gain_that_is_noise_is_not_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HASTEN_TEST_SEED", "8")  # five pairs of which come to 1.07 times as soon
    monkeypatch.setenv("HASTEN_TEST_OFFSET", "0.05")
    monkeypatch.setenv("HASTEN_TEST_PROCESSES", str(tmp_path))
    judged = Judged("job", rate(0.05))  # the rate that the job has
    assert "and the plan without it after" in judged.reached()[0].sentence  # sooner from the first seed, by luck
    final = judged.reached()[-1]
    assert len(final.seeds) == PAIRS
    assert judged.tried()["learning_rate = 0.05"][0] == "no difference"
    assert not judged.won


@pytest.mark.proof
def test_of_two_that_are_sooner_from_the_first_seed_the_soonest_that_is_kept_joins():
    judged = Judged("job", rate(0.1), changing("batch_size", 4))
    [gained] = judged.won
    [kept] = [each for each in judged.reached() if each.kept]
    assert gained.reached == kept
    assert [choice.technique for choice in gained.choices] == [kept.choice.technique, "stop_at"]
    assert sorted(verdict for verdict, _ in judged.tried().values()) == ["faster", "skipped"]


@pytest.mark.proof
def test_a_search_that_may_change_training_writes_a_plan_that_ends_at_the_target():
    name = f"{JOBS}:job"
    options = Options(seconds=1000, ceiling=Preserves.TRAINING, only=("learning_rate",))
    found = Search(Arms(name), name, options, keep=lambda _: None, report=lambda _: None, earlier=lambda _: [])()
    plan = plan_found(found.profile.surveyed, found.proven, found.log.tried, found.log.proofs, found.gained)
    assert [item.choice.technique for item in plan.choices] == ["learning_rate", "stop_at"]
    assert plan.choices[0].speedup is not None
    trained = hasten.train(job(), plan)
    assert (trained.steps, trained.reason) == (12, "the target is reached")
    assert [each.value for each in plan.rejected if each.technique == "learning_rate"] == [0.025]
