"""A search finds what was planted, keeps nothing that does nothing, and goes on where it was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import Doing, Ended, Proven, Record, Surveyed, Tried, line_of, records_of
from hasten.tuning.proof.short_runs import SEEDS
from hasten.tuning.search import expected_seconds, plan_search
from hasten.tuning.search.found_plan import plan_found
from hasten.tuning.search.plan_profile import PlanProfile
from hasten.tuning.search.plan_search import Found, Search
from hasten.tuning.search.round_trials import RoundTrials
from hasten.tuning.search.search_log import Options
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed
from support.report.samples import sample_records
from tuning.search.test_rounds import COMPILE, FUSED, choice, profile, tried

JOBS = Path(__file__).parents[1] / "jobs" / "clocked_jobs.py"


@dataclass
class Searched:
    """One search and all that it said."""

    found: Found
    records: list[Record]
    doing: list[Doing] = field(default_factory=list[Doing])

    def verdicts(self) -> dict[str, str]:
        tried = (record for record in self.records if isinstance(record, Tried))
        return {str(record.choice): record.verdict for record in tried if not record.on}

    def choices(self) -> list[str]:
        return [str(choice) for choice in self.found.proven.choices] if self.found.proven else []


def searched(
    *only: str,
    function: str = "job",
    earlier: Sequence[Record] = (),
    ceiling: Preserves = Preserves.ROUNDING,
    seconds: float = 1000,
    tell: Callable[[Doing], None] = lambda doing: None,
) -> Searched:
    job, records, doing = f"{JOBS}:{function}", list[Record](), list[Doing]()

    def told(each: Doing) -> None:
        doing.append(each)
        tell(each)

    def same_key(surveyed: Surveyed) -> Sequence[Record]:
        keys = {record.key for record in earlier if isinstance(record, Surveyed)}
        return earlier if surveyed.key in keys else []

    options = Options(seconds=seconds, ceiling=ceiling, only=only)
    search = Search(Arms(job), job, options, keep=records.append, report=told, earlier=same_key)
    return Searched(found=search(), records=records, doing=doing)


@pytest.fixture(scope="module")
def planted() -> Searched:
    """The search that finds microbatches of 4, for all who only look at it; its confirmation has a process an arm."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected_seconds, "MOST_STARTS", 1)
        return searched("microbatch", "threads")


def test_a_planted_gain_is_found_and_confirmed_and_a_planted_slow_down_is_not(planted: Searched):
    search = planted
    assert search.choices() == ["microbatch = 4"]
    proven = search.found.proven
    assert proven is not None
    around = search.found.profile.surveyed.process_seconds  # which no choice makes shorter
    assert around > 0
    assert proven.speedup.ratio == pytest.approx(proven.plain.total / (proven.plain.total / 2 + around / 2), rel=0.05)
    assert search.verdicts()["microbatch = 4"] == "faster"
    assert search.verdicts()["threads = 1"] == "slower"


def test_before_each_part_a_search_says_when_it_expects_its_result(planted: Searched):
    expected = {each.what: each.to_end for each in planted.doing if each.to_end is not None}
    assert [*expected] == ["trying", "trying, on top of microbatch = 4", "proving what was faster", "confirming"]
    assert expected["confirming"] < expected["trying, on top of microbatch = 4"] < expected["trying"]


def test_the_proof_of_a_first_choice_is_not_begun_where_it_would_end_far_too_late(monkeypatch):
    monkeypatch.setattr(plan_search, "LATE_SECONDS", 0.0)
    search = searched("microbatch", seconds=0.1)
    assert search.verdicts()["microbatch = 4"] == "faster"
    [proof] = [each for each in search.records if isinstance(each, Proven)]
    assert (proof.passes, proof.unanswered) == (False, True)
    assert "takes about" in proof.reason
    assert search.choices() == []


SURVEYED = next(each for each in sample_records() if isinstance(each, Surveyed))
CLAIMS = {
    "fused_optimizer": FUSED,
    "loader_workers": choice("loader_workers", 2, Preserves.BITS),
    "precision": choice("precision", "bf16", Preserves.STATISTICS),
    "prefetch": choice("prefetch", 4, Preserves.BITS),
}


def names(choices: Iterable[Choice]) -> list[str]:
    return [each.technique for each in choices]


def proofs_of(trials: Sequence[Tried], planned: PlanProfile, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a search wants proven, whose rounds gave these trials, and in how many seconds at most."""

    @dataclass
    class Joining:
        trials: RoundTrials
        profile_of: object

        def run(self) -> tuple[Choice, ...]:
            for each in trials:
                self.trials.log.add(each)
            return tuple(each.choice for each in trials)

    def prove(_: object, joined: Sequence[Choice], *rest: object, seconds: float) -> tuple[Choice, ...]:
        begun.update(names=names(joined), seconds=seconds)
        return ()

    begun = dict[str, Any]()
    patch.setattr(plan_search, "profile_plan", lambda *_, **_more: planned)
    patch.setattr(plan_search, "SearchRounds", Joining)
    patch.setattr(plan_search, "prove", prove)
    return {"records": searched(seconds=60.0).records} | begun


@pytest.mark.parametrize(
    ("late", "ratios", "proven"),
    [
        (700.0, {"fused_optimizer": 1.8, "loader_workers": 1.05}, ["fused_optimizer", "loader_workers"]),
        (420.0, {"fused_optimizer": 1.8, "loader_workers": 1.05}, ["fused_optimizer"]),
        (420.0, {"loader_workers": 1.8, "fused_optimizer": 1.05}, ["loader_workers"]),
        (300.0, {"fused_optimizer": 1.8, "loader_workers": 1.05}, ["loader_workers"]),  # the other is still too long
        (250.0, {"fused_optimizer": 1.8, "precision": 1.1, "loader_workers": 1.05}, ["precision"]),
        (420.0, {"loader_workers": 1.01, "prefetch": 1.8, "fused_optimizer": 1.5}, ["loader_workers", "prefetch"]),
        (420.0, {"loader_workers": 1.01, "prefetch": 1.3, "fused_optimizer": 1.5}, ["fused_optimizer"]),
    ],
)
def test_where_there_is_no_time_to_prove_all_the_smallest_gain_goes_that_is_enough_or_what_takes_longest(
    late: float, ratios: dict[str, float], proven: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Planted: of 3 s a step, a proof of gradients takes longer than one by bits."""
    slow = profile(surveyed=SURVEYED, step_seconds=3.0, gradient_steps=82, gradient_processes=5)
    monkeypatch.setattr(plan_search, "LATE_SECONDS", late)
    found = proofs_of([tried(CLAIMS[name], ratio) for name, ratio in ratios.items()], slow, monkeypatch)
    dropped = [each for each in found["records"] if isinstance(each, Proven)]
    assert found["names"] == proven
    assert {*names([each.choice for each in dropped])} == ratios.keys() - {*proven}
    assert all(each.unanswered and "takes about" in each.reason for each in dropped)


def test_proofs_of_a_compiled_plan_have_the_time_to_compile_it_in_each_of_their_processes(monkeypatch):
    compiled = tried(COMPILE, 1.3)
    assert compiled.costs is not None
    compiled = replace(compiled, costs=replace(compiled.costs, one_off=101.0))
    script = profile(surveyed=SURVEYED)
    assert proofs_of([compiled], script, monkeypatch)["seconds"] > SEEDS * 100.0


def test_the_plan_says_what_it_is_worth_and_why_all_else_is_not_in_it(planted: Searched):
    found = planted.found
    plan = plan_found(found.profile.surveyed, found.proven, found.log.tried, found.log.proofs)
    [kept] = plan.choices
    assert kept.speedup is not None
    assert kept.speedup.low > 1.5
    assert plan.total is not None
    training, planned = (
        seconds - plan.total.process_seconds for seconds in (plan.total.baseline_seconds, plan.total.planned_seconds)
    )
    assert training == pytest.approx(2 * planned, rel=0.05)
    assert plan.total.baseline_between is not None
    assert plan.total.planned_between is not None
    for seconds, between in (
        (plan.total.baseline_seconds, plan.total.baseline_between),
        (plan.total.planned_seconds, plan.total.planned_between),
    ):
        assert between.low <= seconds <= between.high
    reasons = {(each.technique, each.value): each.reason for each in plan.rejected}
    assert reasons["threads", 1].startswith("slower: 0.")
    assert all(reasons.values())


def in_noise(
    seeds: Iterable[int], folder: Path, patch: pytest.MonkeyPatch, noise: float, *only: str, function: str = "job"
) -> Iterator[tuple[Searched, int]]:
    """A search for each seed, and how many processes it had. noise: by which steps differ, and processes as well."""
    patch.setenv("HASTEN_TEST_NOISE", str(noise))
    patch.setenv("HASTEN_TEST_OFFSET", str(noise))
    for seed in seeds:
        processes = folder / str(seed)
        processes.mkdir()
        patch.setenv("HASTEN_TEST_SEED", str(seed))
        patch.setenv("HASTEN_TEST_PROCESSES", str(processes))
        yield searched(*only, function=function), len(list(processes.iterdir()))


def kept_in_noise(seeds: Iterable[int], folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Of so many searches among what does nothing, how many kept it."""
    kept = 0
    for search, processes in in_noise(seeds, folder, patch, 0.01, "flush_denormals", function="indifferent"):
        assert set(search.verdicts().values()) & {"faster", "slower", "no difference"}
        assert processes >= 4  # the look, the base, the base again and the choice
        kept += search.found.proven is not None
    return kept


def kept_beside_a_gain(seeds: Iterable[int], folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Of so many searches with a planted gain and two choices that do nothing, how many kept one of these."""
    kept = 0
    for search, _ in in_noise(seeds, folder, patch, 0.02, "microbatch", "flush_denormals", "allocator"):
        assert "microbatch = 4" in search.choices()
        kept += len(search.choices()) > 1
    return kept


@pytest.mark.proof
@pytest.mark.trap(50)
@pytest.mark.timeout(1800)
def test_of_fifty_searches_with_a_gain_few_keep_what_does_nothing_beside_it(tmp_path, monkeypatch):
    assert kept_beside_a_gain(range(50), tmp_path, monkeypatch) <= 5


@pytest.mark.proof
@pytest.mark.trap(50)
@pytest.mark.timeout(1800)
def test_of_a_hundred_searches_among_what_does_nothing_at_most_five_keep_it(tmp_path, monkeypatch):
    assert kept_in_noise(range(100), tmp_path, monkeypatch) <= 5


@pytest.mark.proof
def test_what_could_gain_nothing_that_is_seen_is_not_tried_and_its_bound_is_the_reason():
    search = searched("fused_optimizer")  # the planted clock gives the update no time
    assert set(search.verdicts().values()) == {"skipped"}
    reasons = {tried.reason for tried in search.found.log.tried}
    (reason,) = reasons
    assert reason.startswith("at most 0.1 % to gain, and less than 1 % is not tried: it can only shorten the update")


@pytest.mark.proof
def test_a_trial_that_fails_is_told_with_its_class_and_ends_nothing():
    search = searched("microbatch", "threads", function="failing_in_microbatches")
    assert search.verdicts()["microbatch = 4"] == "failed"
    assert search.verdicts()["threads = 1"] == "slower"
    assert search.found.proven is None


def test_when_the_job_itself_fails_there_is_nothing_to_search():
    with pytest.raises(ArmFailed, match="in every arm"):
        searched("microbatch", function="failing_at_once")


@pytest.mark.proof
def test_a_search_that_is_told_of_an_earlier_one_repeats_none_of_its_trials(planted: Searched):
    read = records_of([line_of(record) + "\n" for record in planted.records])
    again = searched("microbatch", "threads", earlier=read)
    assert again.choices() == planted.choices()
    assert not [doing for doing in again.doing if doing.what.startswith("trying")]
    assert [doing for doing in planted.doing if doing.what.startswith("trying")]


def interrupting(where: str) -> Callable[[Doing], None]:
    def tell(doing: Doing) -> None:
        if doing.what.startswith(where) and doing.done == 2:
            raise KeyboardInterrupt

    return tell


@pytest.mark.proof
@pytest.mark.parametrize("where", ["trying", "confirming"])
def test_a_search_goes_on_from_an_interrupted_one_which_claims_nothing_that_is_not_confirmed(where: str):
    search = searched("microbatch", tell=interrupting(where))
    assert search.found.interrupted
    assert search.found.proven is None
    assert not [record for record in search.records if isinstance(record, Ended)]
    assert searched("microbatch", earlier=search.records).choices() == ["microbatch = 4"]
