"""A search measures again what other programs disturbed, and ends without a verdict where they never stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hasten.errors import NotMeasurable
from hasten.facts.choice import Preserves
from hasten.facts.plan import Plan, Speedup, make_plan
from hasten.facts.trials import Confirmed, Doing, Record, Surveyed
from hasten.measure.processor_load import Load, LoadClock
from hasten.tuning.search import plan_search
from hasten.tuning.search.comparison import ComparisonSettings, Entry, compare_arms
from hasten.tuning.search.confirmation import Confirmation
from hasten.tuning.search.objective import RunLength
from hasten.tuning.search.plan_search import Search
from hasten.tuning.search.rounds import SearchRounds
from hasten.tuning.search.search_log import Options
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.other_programs import OtherPrograms
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome
from support.report.samples import sample_records
from tuning.search.test_rounds import profile

JOBS = Path(__file__).parents[1] / "jobs" / "clocked_jobs.py"
QUIET = Load(seconds=1.0, cores=2, others=0.0, idle=0.0)
BUSY = Load(seconds=1.0, cores=2, others=0.96, idle=0.0)
ONLY_MICROBATCHES = Options(seconds=1000, ceiling=Preserves.ROUNDING, only=("microbatch",))


@dataclass
class Machine:
    """One that is as busy as it is told: its loads one after the other, and the last one for ever."""

    loads: Sequence[Load]
    told: list[Doing] = field(default_factory=list[Doing])

    def __post_init__(self) -> None:
        self._loads = self._following()

    def _following(self) -> Iterator[Load]:
        yield from self.loads
        while True:
            yield self.loads[-1]

    def load(self) -> Load:
        return next(self._loads)

    def others(self, patience_seconds: float | None) -> OtherPrograms:
        return OtherPrograms(
            patience_seconds, self.told.append, clock=lambda: cast(LoadClock, self), pause=lambda seconds: None
        )


def searched(others: OtherPrograms, records: list[Record]) -> Search:
    job = f"{JOBS}:job"
    arms = Arms(job, other_programs=others)
    return Search(arms, job, ONLY_MICROBATCHES, keep=records.append, report=lambda doing: None, earlier=lambda _: [])


def test_what_is_measured_on_a_busy_machine_is_dropped_and_measured_again():
    machine, measured = Machine([BUSY, QUIET, QUIET]), list[int]()
    found = machine.others(60.0).all_undisturbed([lambda: measured.append(1)], lambda: measured.pop())
    assert found == [None]
    assert measured == [1]


def test_waiting_says_how_busy_the_machine_is_and_how_long_it_goes_on():
    machine = Machine([BUSY, BUSY, QUIET])
    machine.others(60.0).undisturbed(lambda: None)
    once, *waiting = machine.told
    assert once.stays
    assert all("other programs take 48 % of the processor (1.0 of 2 cores)" in each.what for each in machine.told)
    assert [each.seconds_left for each in waiting] == [59.0, 58.0]


def test_a_machine_that_never_gets_quiet_ends_the_search_and_that_is_no_verdict():
    others = Machine([BUSY]).others(30.0)
    with pytest.raises(NotMeasurable, match=r"not measurable now: other programs take 48 % of the processor") as error:
        others.undisturbed(lambda: None)
    assert error.value.exit_code == 75
    assert 30 < others.lost_seconds < 40
    assert "run the same command" in error.value.fix


def test_who_asks_for_it_measures_on_a_busy_machine_and_is_told_how_busy_it_was():
    others = Machine([BUSY, QUIET]).others(None)
    others.undisturbed(lambda: None)
    others.undisturbed(lambda: None)
    assert others.share == pytest.approx(0.24)
    assert others.lost_seconds == 0


def test_a_disturbed_repeat_leaves_no_window_behind():
    starts, kept, dropped = [QUIET] * 2, [QUIET, QUIET], [QUIET, BUSY]  # a load for each of the two arms
    rounds = [*kept, *dropped, QUIET, *kept, *dropped, QUIET, *kept]  # one more for the wait behind what was dropped
    machine = Machine([*starts, *rounds])
    arms = Arms(f"{JOBS}:job", other_programs=machine.others(60.0))
    base, other = Entry(name="plain", plan=Plan()), Entry(name="bf16", plan=make_plan(precision="bf16"))
    length = RunLength(steps=100, epochs=1, evaluations=0)
    compared = compare_arms(
        arms, base, [other], ComparisonSettings(steps=2, repeats=3, checks=()), length, lambda *_: None
    )
    assert len(compared.base.windows) == len(compared.measured["bf16"].windows) == 3
    assert len(machine.told) == 1 + 2  # once what is dropped, and each wait


@pytest.mark.proof
def test_the_time_that_other_programs_cost_is_not_taken_from_the_search():
    others = Machine([*[BUSY] * 20, QUIET]).others(60.0)
    found = searched(others, [])()
    assert others.lost_seconds >= 20
    assert found.log.seconds_left > ONLY_MICROBATCHES.seconds - found.log.seconds
    assert found.proven is not None


def test_a_search_does_not_use_trials_that_were_measured_on_a_busy_machine():
    keys = set[str]()

    class Surveying(list[Record]):
        """Of a search, that ends behind its first look at the job."""

        def append(self, record: Record) -> None:
            if isinstance(record, Surveyed):
                keys.add(record.key)
                raise KeyboardInterrupt

    for patience in (None, 60.0):
        with suppress(KeyboardInterrupt):
            searched(Machine([QUIET]).others(patience), Surveying())()
    assert len(keys) == 2


APART, EQUAL = Speedup(ratio=1.1, low=1.05, high=1.15, pairs=12), Speedup(ratio=1.0, low=0.98, high=1.02, pairs=12)
SURVEYED = next(record for record in sample_records(steps=2) if isinstance(record, Surveyed))
CONFIRMED = next(record for record in sample_records(steps=2) if isinstance(record, Confirmed))
FASTER = Speedup(ratio=1.2, low=1.15, high=1.25, pairs=12)


def no_arm(*given: Any) -> None:
    raise ArmFailed("plan", Outcome.CRASHED, "as planted")


def confirmed(patch: pytest.MonkeyPatch, *noises: Speedup, plan: Speedup = FASTER) -> Confirmed | None:
    """What a search proves whose trials are planted. noises: how many times as fast the job is in its second process,
    in each confirmation; plan: and by the plan."""
    left = [*noises]

    def planted(*given: Any, **named: Any) -> Confirmation:
        final = replace(CONFIRMED, noise=left.pop(0), speedup=plan)
        given[5](final)
        return Confirmation(confirmed=final, comparison=cast("Any", SimpleNamespace(memory={})))

    made = profile(surveyed=SURVEYED)
    patch.setattr(plan_search, "profile_plan", lambda *given: made)
    patch.setattr(SearchRounds, "run", lambda self: CONFIRMED.choices)
    patch.setattr(plan_search, "prove", lambda arms, choices, log, runs, prover, seconds: choices)
    patch.setattr(plan_search, "confirm", planted)
    patch.setattr(Arms, "start", no_arm)
    try:
        return searched(Machine([QUIET]).others(60.0), [])().proven
    finally:
        assert left == []


def test_a_job_that_differs_from_itself_in_a_second_process_is_confirmed_once_more(monkeypatch):
    proven = confirmed(monkeypatch, APART, EQUAL)
    assert proven is not None
    assert proven.noise == EQUAL


def test_processes_of_the_same_code_differ_by_a_few_per_cent_and_a_plan_that_gains_more_is_proven(monkeypatch):
    assert confirmed(monkeypatch, Speedup(ratio=1.02, low=1.01, high=1.04, pairs=12)) is not None


def test_a_job_that_differs_from_itself_twice_is_not_measurable_where_the_plan_is_not_faster_by_far_more(monkeypatch):
    with pytest.raises(NotMeasurable, match=r"two processes of the same job differ in speed, 1\.10"):
        confirmed(monkeypatch, APART, APART)


def test_a_plan_that_is_faster_by_far_more_than_the_job_differs_from_itself_is_proven(monkeypatch):
    assert confirmed(monkeypatch, APART, plan=Speedup(ratio=1.5, low=1.4, high=1.6, pairs=12)) is not None
