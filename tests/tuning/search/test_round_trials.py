"""What the trials of a round are told as, and what of them another search asks again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Between
from hasten.facts.trials import Costs, Noise, Plain, Record
from hasten.measure.paired_timing import Window
from hasten.training.setup.job_options import options_of
from hasten.tuning.search import round_trials
from hasten.tuning.search.candidates import OUT_OF_TIME
from hasten.tuning.search.comparison import Compared, ComparisonSettings, Entry
from hasten.tuning.search.confirmation import AGAIN, PLAIN
from hasten.tuning.search.expected_seconds import comparison_seconds, end_seconds
from hasten.tuning.search.objective import Measured, RunLength
from hasten.tuning.search.plan_profile import PlanProfile, profile_plan
from hasten.tuning.search.round_trials import CONTROLS, RoundTrials
from hasten.tuning.search.rounds import SearchRounds
from hasten.tuning.search.search_log import Options, SearchLog
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome
from tuning.search.test_rounds import ALLOCATOR, BUDGET, CHANNELS, COMPILE, FUSED
from tuning.search.test_rounds import profile as planted_profile

JOB = f"{Path(__file__).parents[1] / 'jobs' / 'clocked_jobs.py'}:job"
FLUSH = Choice(technique="flush_denormals", value=True, preserves=Preserves.ROUNDING)
WORKERS = Choice(technique="loader_workers", value=2, preserves=Preserves.BITS)
SLOWER = Choice(technique="threads", value=1, preserves=Preserves.ROUNDING)


@pytest.fixture(scope="module")
def profile() -> PlanProfile:
    arms = Arms(JOB, options=options_of([], ["--verbose"]))
    return profile_plan(arms, JOB, Preserves.STATISTICS)


def test_the_first_record_has_the_options_of_the_job(profile: PlanProfile):
    assert profile.surveyed.options == ("--", "--verbose")


def tried(profile: PlanProfile, *choices: Choice, on: tuple[Choice, ...] = ()) -> list[Record]:
    """The records of a search's first comparison."""
    kept = list[Record]()
    log = SearchLog(options=Options(seconds=5_000), keep=kept.append, report=lambda doing: None)
    RoundTrials(arms=Arms(JOB), log=log, baseline=profile).try_all(profile, on, choices)
    return kept


@pytest.mark.parametrize(("faults", "asked"), [(0.1, [ALLOCATOR, FLUSH]), (0.0, [ALLOCATOR])])
def test_whatever_the_time_what_treats_a_counted_symptom_is_tried_beside_the_most_promising_choice(
    faults: float, asked: list[Choice], monkeypatch
):
    def compare(arms: Arms, base: Entry, entries: Sequence[Entry], *rest: object) -> Compared:
        found.extend(entry.name for entry in entries)
        raise ArmFailed(base.name, Outcome.CRASHED, "it is not run here")

    found = list[str]()
    monkeypatch.setattr(round_trials, "compare_arms", compare)
    counted = planted_profile(fault_seconds=faults * BUDGET.step)
    log = SearchLog(options=Options(seconds=0.1), keep=lambda record: None, report=lambda doing: None)
    with pytest.raises(ArmFailed):
        RoundTrials(arms=Arms(JOB), log=log, baseline=counted).try_all(counted, (), [ALLOCATOR, FLUSH, SLOWER])
    assert found == [*map(str, asked), AGAIN]


@pytest.mark.parametrize(
    ("turn_seconds", "choices", "measuring"),
    [
        (0.1, [FUSED], [PLAIN, str(FUSED), AGAIN]),
        (6.0, [FUSED], []),
        (6.0, [FUSED, WORKERS], [PLAIN, str(WORKERS)]),
    ],
)
def test_long_turns_are_measured_only_where_a_choice_may_shorten_them_and_their_time_is_expected(
    turn_seconds: float, choices: list[Choice], measuring: list[str], monkeypatch
):
    def compare(arms: Arms, base: Entry, entries: Sequence[Entry], *rest: object) -> Compared:
        found.extend(entry.name for entry in (base, *entries) if not entry.same_turns)
        raise ArmFailed(base.name, Outcome.CRASHED, "it is not run here")

    found = list[str]()
    monkeypatch.setattr(round_trials, "compare_arms", compare)
    turning = planted_profile(length=RunLength(steps=1000, epochs=2, evaluations=0, turn_seconds=turn_seconds))
    log = SearchLog(options=Options(seconds=5_000), keep=lambda record: None, report=lambda doing: None)
    with pytest.raises(ArmFailed):
        RoundTrials(arms=Arms(JOB), log=log, baseline=turning).try_all(turning, (), choices)
    assert found == measuring
    without = planted_profile(length=RunLength(steps=1000, epochs=2, evaluations=0))
    more = comparison_seconds(turning, choices, CONTROLS) - comparison_seconds(without, choices, CONTROLS)
    assert more == pytest.approx(turn_seconds * len(measuring))


def asked_of_a_comparison(
    planned: PlanProfile,
    seconds: float,
    choices: Sequence[Choice],
    patch: pytest.MonkeyPatch,
    *,
    in_time: bool = True,
) -> tuple[list[Entry], ComparisonSettings | None, SearchLog]:
    """Of a search's first one; None where there is none."""

    def compare(
        arms: Arms, base: Entry, entries: Sequence[Entry], settings: ComparisonSettings, *rest: object
    ) -> Compared:
        found.append((entries, settings))
        raise ArmFailed(base.name, Outcome.CRASHED, "it is not run here")

    found = list[tuple[Sequence[Entry], ComparisonSettings]]()
    patch.setattr(round_trials, "compare_arms", compare)
    log = SearchLog(options=Options(seconds=seconds), keep=lambda record: None, report=lambda doing: None)
    with suppress(ArmFailed):
        RoundTrials(arms=Arms(JOB), log=log, baseline=planned).try_all(planned, (), choices, in_time=in_time)
    entries, settings = found[0] if found else ([], None)
    return [*entries], settings, log


@pytest.mark.parametrize(("step_seconds", "is_limited"), [(0.05, False), (0.3, False), (1.0, True)])
def test_a_comparison_has_a_time_limit_where_a_step_takes_longer_than_a_window(
    step_seconds: float, is_limited: bool, monkeypatch
):
    planned = planted_profile(step_seconds=step_seconds, length=RunLength(steps=60, epochs=1, evaluations=0))
    entries, settings, _ = asked_of_a_comparison(planned, 1.0, [FLUSH], monkeypatch)
    assert settings is not None
    least = 5 * (1 + len(entries)) * step_seconds
    assert settings.seconds == (pytest.approx(least) if is_limited else math.inf)
    _, settings, _ = asked_of_a_comparison(planned, 5_000.0, [FLUSH], monkeypatch)
    assert settings is not None
    assert settings.seconds > 4_000.0


def test_nothing_is_tried_whose_proof_would_end_far_too_late_and_the_seconds_that_it_needs_are_kept(monkeypatch):
    slow = planted_profile(step_seconds=8.0, length=RunLength(steps=60, epochs=1, evaluations=0))
    entries, _, log = asked_of_a_comparison(slow, 60.0, [FLUSH, ALLOCATOR], monkeypatch)
    assert not entries
    assert [each.reason for each in log.tried] == [OUT_OF_TIME] * 2
    assert log.needed_seconds > 240.0
    entries, _, _ = asked_of_a_comparison(slow, 2 * log.needed_seconds, [FLUSH], monkeypatch)
    assert str(FLUSH) in [entry.name for entry in entries]


@pytest.mark.parametrize(("step_seconds", "is_tried"), [(0.05, True), (8.0, False)])
def test_compiling_takes_none_of_the_time_and_is_not_tried_where_its_proof_would_end_far_too_late(
    step_seconds: float, is_tried: bool, monkeypatch
):
    planned = planted_profile(step_seconds=step_seconds)
    entries, _, _ = asked_of_a_comparison(planned, 1.0, [COMPILE], monkeypatch, in_time=False)
    assert bool(entries) is is_tried


def test_a_choice_has_as_long_to_start_as_the_base_and_what_it_can_save(monkeypatch):
    planned = planted_profile(length=RunLength(steps=400, epochs=1, evaluations=0), start_seconds=3.0)
    (flush, *_), _, _ = asked_of_a_comparison(planned, 30.0, [FLUSH], monkeypatch)
    assert flush.start_seconds is not None
    assert 3 * 3.0 + 400 * 0.05 <= flush.start_seconds < 3 * 3.0 + 400 * 0.05 + 2.0


def measured(name: str, seconds: float) -> Measured:
    return Measured(windows=tuple(Window(arm=name, steps=100, seconds=seconds) for _ in range(12)), one_off=1.0)


def test_nothing_more_is_tried_where_its_time_is_needed_to_prove_what_was_faster(monkeypatch):
    def compare(arms: Arms, base: Entry, entries: Sequence[Entry], *rest: object) -> Compared:
        asked.append([entry.name for entry in entries])
        found = {entry.name: measured(entry.name, 5.0 if entry.name in faster else 10.0) for entry in entries}
        return Compared(base=measured(base.name, 10.0), measured=found, failed={}, early={})

    monkeypatch.setattr(round_trials, "compare_arms", compare)
    monkeypatch.setattr(round_trials, "LEAD", 9.0)
    planned = planted_profile()
    choices = [Choice(technique=f"technique {number}", value=True, preserves=Preserves.ROUNDING) for number in range(8)]
    enough = comparison_seconds(planned, choices[:4], 2) + end_seconds(planned, planned, choices[:1], 60.0) + 1.0
    for faster in ([], [*map(str, choices[:4])]):
        asked = list[list[str]]()
        log = SearchLog(options=Options(seconds=enough), keep=lambda record: None, report=lambda doing: None)
        RoundTrials(arms=Arms(JOB), log=log, baseline=planned).try_all(planned, (), choices)
        assert [len(names) for names in asked] == ([5] if faster else [5, 4])


@pytest.mark.parametrize(("again", "verdicts"), [(10.0, ["faster", "slower"]), (11.2, ["no difference"] * 2)])
def test_no_trial_is_surer_than_the_base_beside_itself_and_what_looks_faster_is_still_confirmed(
    again: float, verdicts: list[str], monkeypatch
):
    def compare(arms: Arms, base: Entry, entries: Sequence[Entry], *rest: object) -> Compared:
        found = {entry.name: measured(entry.name, seconds[entry.name]) for entry in entries}
        return Compared(base=measured(base.name, 10.0), measured=found, failed={}, early={})

    monkeypatch.setattr(round_trials, "compare_arms", compare)
    seconds = {AGAIN: again, str(FUSED): 9.0, str(CHANNELS): 10.7}
    planned = planted_profile(FUSED, CHANNELS, treats={})
    log = SearchLog(options=Options(seconds=5_000), keep=lambda record: None, report=lambda doing: None)
    trials = RoundTrials(arms=Arms(JOB), log=log, baseline=planned)
    assert SearchRounds(trials=trials, profile_of=lambda base: planned).run() == (FUSED,)
    assert [each.verdict for each in log.tried[:2]] == verdicts


@pytest.mark.proof
def test_the_plain_job_is_kept_with_its_spread_and_its_noise_and_so_is_no_plan_that_others_are_tried_on(
    profile: PlanProfile,
):
    before = Costs(one_off=0, step=1, turn=0, evaluation=0, total=1, peak_bytes=0, between=Between(low=0, high=9e9))
    kept = tried(replace(profile, costs=before), FLUSH)
    [now] = [each.costs for each in kept if isinstance(each, Plain)]
    assert now.between == before.between
    assert now.total not in (0, before.total)
    assert [each for each in kept if isinstance(each, Noise)]
    assert not [each for each in tried(profile, FLUSH, on=(SLOWER,)) if isinstance(each, Plain | Noise)]
