"""What joins a plan, in which order, and what is tried again. Trials are planted: nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.plan import Speedup
from hasten.facts.trials import Budget, Costs, Proven, Tried
from hasten.tuning.search.bounds import Around
from hasten.tuning.search.candidates import OUT_OF_TIME
from hasten.tuning.search.expected_seconds import end_seconds
from hasten.tuning.search.objective import RunLength
from hasten.tuning.search.plan_profile import PlanProfile
from hasten.tuning.search.round_trials import RoundTrials
from hasten.tuning.search.rounds import SearchRounds
from hasten.tuning.search.search_log import Options, SearchLog
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome


def choice(technique: str, value: Value = True, preserves: Preserves = Preserves.ROUNDING) -> Choice:
    return Choice(technique=technique, value=value, preserves=preserves)


BF16, FUSED, CHANNELS = choice("precision", "bf16"), choice("fused_optimizer", "fused"), choice("channels_last")
SIZES = [choice("microbatch", size) for size in (8, 4, 2)]
ALLOCATOR, COMPILE = choice("allocator", "keep_freed_memory", Preserves.BITS), choice("compile", "default")
BUDGET = Budget(
    arm="plain", data_wait=0.1, transfer=0.0, forward=0.4, backward=0.3, optimizer=0.1, python=0.1, evaluation=0.0,
    steps=10,
)  # fmt: skip


def profile(*proposed: Choice, fault_seconds: float = 0.005, **changes: Any) -> PlanProfile:
    around = Around(on_cpu=True, cores=2, reads_beside=False, fault_seconds=fault_seconds)
    fields: dict[str, Any] = {
        "surveyed": None,
        "proposed": proposed,
        "treats": {each.technique: "SLOW_OPTIMIZER" for each in proposed} | {"allocator": "SLOW_ALLOCATION"},
        "length": RunLength(steps=1000, epochs=1, evaluations=0),
        "start_seconds": 1.0,
        "step_seconds": 0.05,
        "interruption_seconds": 0.0,
        "budget": BUDGET,
        "around": around,
        "room": 10,
    }
    return PlanProfile(**(fields | changes))


def tried(
    what: Choice, ratio: float, on: tuple[Choice, ...] = (), *, off: float = 0.1, pairs: int = 12, **rest: Any
) -> Tried:
    """off: half of the interval."""
    verdict = "faster" if ratio - off > 1 else "slower" if ratio + off < 0.99 else "no difference"
    found = Speedup(ratio=ratio, low=ratio - off, high=ratio + off, pairs=pairs)
    took = Costs(one_off=0, step=1, turn=0, evaluation=0, total=100 / ratio, peak_bytes=0)
    return Tried(choice=what, on=on, verdict=verdict, reason=f"{found}", speedup=found, costs=took, **rest)


@dataclass
class Planted:
    """ratio_of: of a choice on top of others; asked: the trials, in their order."""

    baseline: PlanProfile
    ratio_of: Callable[[Choice, tuple[Choice, ...]], float]
    log: SearchLog
    off: float = 0.1
    asked: list[tuple[Choice, tuple[Choice, ...]]] = field(default_factory=list[Any])
    late: Sequence[Choice] = ()  # that there is no time for
    has_time: Callable[[Sequence[Choice]], bool] = lambda choices: True

    def try_all(
        self, profile: PlanProfile, base: Any, choices: Sequence[Choice], *, in_time: bool = True
    ) -> list[Tried]:
        choices = [each for each in choices if each not in self.late]
        results = [tried(each, self.ratio_of(each, base), base, off=self.off) for each in choices]
        self.asked += [(each, base) for each in choices]
        for each in results:
            self.log.add(each)
        return results

    def has_lead(self, results: Sequence[Tried]) -> bool:
        return False

    def has_time_to_end(self, profile: PlanProfile, choices: Sequence[Choice]) -> bool:
        return self.has_time(choices)

    ends_soon_enough = has_time_to_end


def log() -> SearchLog:
    return SearchLog(options=Options(), keep=lambda record: None, report=lambda doing: None)


def planted(
    ratios: dict[str, float] | Callable[[Choice, tuple[Choice, ...]], float],
    *proposed: Choice,
    profile_of: Callable[[Sequence[Choice]], PlanProfile] | None = None,
    **changes: Any,
) -> tuple[tuple[Choice, ...], Planted]:
    """What joined, and the trials. ratios: by the text of a choice, 1 for all others."""
    baseline = profile(*proposed, **changes.pop("around", {}))
    of = ratios if callable(ratios) else lambda each, on: cast("dict[str, float]", ratios).get(str(each), 1.0)
    trials = Planted(baseline=baseline, ratio_of=of, log=log(), **changes)
    rounds = SearchRounds(trials=cast("RoundTrials", trials), profile_of=profile_of or (lambda base: baseline))
    return rounds.run(), trials


def test_winners_join_the_fastest_first_and_what_is_no_faster_does_not():
    found, trials = planted({str(BF16): 2.0, str(FUSED): 1.3, str(CHANNELS): 0.8}, FUSED, BF16, CHANNELS)
    assert found == (BF16, FUSED)
    again = [(each, on) for each, on in trials.asked if on]
    assert again == [(CHANNELS, (BF16, FUSED))]  # bf16 can have reversed its result


def test_of_one_technique_the_fastest_value_joins_and_numbers_go_on_while_they_get_better():
    found, trials = planted({"microbatch = 8": 1.2, "microbatch = 4": 1.5, "microbatch = 2": 1.3}, *SIZES)
    assert found == (SIZES[1],)
    assert [each.value for each, on in trials.asked if not on] == [8, 4, 2]
    _, trials = planted({"microbatch = 8": 1.5, "microbatch = 4": 1.2}, *SIZES)
    assert [each.value for each, on in trials.asked if not on] == [8, 4]
    assert "did not get faster" in trials.log.tried[2].reason
    _, trials = planted({}, *SIZES, late=SIZES[:2])
    assert [each.reason for each in trials.log.tried] == [OUT_OF_TIME]


def test_two_choices_that_only_looked_faster_join_at_most_and_of_each_technique_one_value():
    looked = {str(ALLOCATOR): 1.08, str(FUSED): 1.06, str(CHANNELS): 1.04}
    assert planted(looked, ALLOCATOR, FUSED, CHANNELS)[0] == (ALLOCATOR, FUSED)
    other = choice("fused_optimizer", "foreach")
    assert planted({str(other): 1.07, str(FUSED): 1.06}, FUSED, other)[0] == (other,)
    found, _ = planted(looked, ALLOCATOR, FUSED, has_time=lambda choices: FUSED not in choices)
    assert found == (ALLOCATOR,)


def test_what_only_looked_faster_joins_by_what_it_seemed_to_save():
    found, _ = planted({str(FUSED): 1.05, str(ALLOCATOR): 1.08, str(CHANNELS): 1.01}, FUSED, ALLOCATOR, CHANNELS)
    assert found == (ALLOCATOR, FUSED)
    found, _ = planted({str(FUSED): 1.05, str(ALLOCATOR): 1.08}, FUSED, ALLOCATOR, has_time=lambda choices: False)
    assert found == ()


def test_a_remedy_for_a_counted_symptom_joins_whatever_it_looked_like_unless_it_was_slower():
    around = {"fault_seconds": 0.1}
    assert planted({str(ALLOCATOR): 0.97}, ALLOCATOR, around=around)[0] == (ALLOCATOR,)
    assert planted({str(ALLOCATOR): 0.97}, ALLOCATOR)[0] == ()
    assert planted({str(ALLOCATOR): 0.8}, ALLOCATOR, around=around)[0] == ()


def test_of_several_winners_those_join_that_there_is_time_to_prove_and_of_the_others_that_is_the_reason():
    ratios = {str(BF16): 2.0, str(CHANNELS): 1.5, str(FUSED): 1.3}
    found, trials = planted(ratios, BF16, CHANNELS, FUSED, has_time=lambda choices: CHANNELS not in choices)
    assert found == (BF16, FUSED)
    last = trials.log.last_trial(CHANNELS)
    assert last is not None
    assert (last.verdict, last.reason.endswith("there was no time to prove it")) == ("faster", True)


def test_the_best_one_joins_an_empty_plan_whatever_the_time():
    found, _ = planted({str(BF16): 2.0, str(FUSED): 1.3}, BF16, FUSED, has_time=lambda choices: False)
    assert found == (BF16,)


def test_compiling_is_tried_last_and_only_where_the_run_is_long_enough_to_earn_it():
    _, trials = planted({str(BF16): 2.0}, COMPILE, BF16)
    assert COMPILE not in [each for each, _ in trials.asked]
    (reason,) = [each.reason for each in trials.log.tried if each.choice is COMPILE]
    assert reason.endswith(" s that steps and evaluations take with precision = bf16 (startup is not counted)")
    long = {"length": RunLength(steps=10_000, epochs=1, evaluations=0)}
    found, trials = planted({str(BF16): 2.0, str(COMPILE): 1.5}, COMPILE, BF16, around=long)
    assert trials.asked[-1] == (COMPILE, (BF16,))
    assert found == (BF16, COMPILE)


def test_a_plan_that_fails_when_others_are_tried_on_it_ends_the_rounds_with_the_plan_before_it():
    def ratio(each: Choice, on: tuple[Choice, ...]) -> float:
        if CHANNELS in on:
            raise ArmFailed("plain", Outcome.NON_FINITE, "the loss is nan")
        return {str(BF16): 2.0, str(CHANNELS): 1.3 if on else 0.8}.get(str(each), 1.0)

    long = {"length": RunLength(steps=10_000, epochs=1, evaluations=0)}
    found, trials = planted(ratio, BF16, CHANNELS, COMPILE, around=long)
    assert found == (BF16,)
    assert (trials.log.is_sound(BF16), trials.log.is_sound(CHANNELS)) == (True, False)
    assert trials.log.proofs[0].reason == "the plan with it failed: not finite: the loss is nan"
    assert COMPILE not in [each for each, _ in trials.asked]


def test_a_plan_that_cannot_be_profiled_is_not_joined():
    def profile_of(base: Sequence[Choice]) -> PlanProfile:
        raise ArmFailed("profile", Outcome.CRASHED, "as planted")

    found, trials = planted({str(BF16): 2.0}, BF16, FUSED, profile_of=profile_of)
    assert found == ()
    assert not trials.log.is_sound(BF16)


def test_the_baseline_that_fails_ends_the_rounds():
    def ratio(each: Choice, on: tuple[Choice, ...]) -> float:
        raise ArmFailed("plain", Outcome.CRASHED, "as planted")

    with pytest.raises(ArmFailed, match="as planted"):
        planted(ratio, BF16)


# ── the time ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_end_takes_longer_with_every_choice_and_least_where_evaluations_alone_change():
    def seconds(*choices: Choice) -> float:
        return end_seconds(profile(), profile(), choices, 60.0)

    workers = choice("loader_workers", 2)
    assert seconds(choice("evaluation_batch", 64)) < seconds(CHANNELS)
    assert seconds(ALLOCATOR) < seconds(ALLOCATOR, workers)
    assert seconds(ALLOCATOR) < seconds(replace(BF16, preserves=Preserves.STATISTICS))


def trials_of(found: SearchLog) -> RoundTrials:
    return RoundTrials(arms=cast("Any", None), log=found, baseline=profile())


def test_a_comparison_leaves_time_for_what_was_faster_and_the_best_of_its_choices_and_not_for_all_of_them():
    trials, group = trials_of(log()), [CHANNELS, ALLOCATOR]
    longest = trials.longest_end(profile(), (BF16,), group)
    assert longest == max(trials.end_seconds(profile(), (BF16, each)) for each in group)
    assert longest < trials.end_seconds(profile(), (BF16, *group))


def test_what_was_faster_is_proven_even_if_the_search_then_ends_a_little_later():
    needed = trials_of(log()).end_seconds(profile(), [CHANNELS, ALLOCATOR])
    for part, is_soon in ((0.9, True), (0.7, False)):
        asked = SearchLog(options=Options(seconds=part * needed), keep=lambda record: None, report=lambda doing: None)
        trials = trials_of(asked)
        assert trials.ends_soon_enough(profile(), [CHANNELS, ALLOCATOR]) is is_soon
        assert not trials.has_time_to_end(profile(), [CHANNELS, ALLOCATOR])


def test_a_lead_whose_proof_has_failed_keeps_nothing_from_being_tried():
    found = log()
    trials, lead = trials_of(found), tried(BF16, 1.6)
    assert trials.has_lead([lead])
    assert not trials.has_lead([tried(BF16, 1.2)])
    found.add(Proven(choice=BF16, passes=False, reason="the loss of step 3 is another"))
    assert not trials.has_lead([lead])
