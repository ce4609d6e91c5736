"""What a search proves of choices that won: together, each by its own claim."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan, Proof
from hasten.facts.trials import Confirmed, Curves, Doing, Proven, Record, Surveyed, Tried, line_of, records_of
from hasten.tuning.proof import gradient_proof, short_runs
from hasten.tuning.proof.answers import Answer, Choices
from hasten.tuning.proof.claim_proofs import prove
from hasten.tuning.proof.job_prover import JobProver
from hasten.tuning.proof.recipe_proof import Recipe
from hasten.tuning.proof.short_runs import ShortRuns
from hasten.tuning.search.found_plan import plan_found
from hasten.tuning.search.search_log import Options, SearchLog
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import OutOfTime
from support.report.samples import sample_records
from tuning.search.test_confirmation import COSTS, ratio

JOBS = Path(__file__).parents[1] / "jobs" / "joint_jobs.py"
STEPS = 12
SPEEDUP = ratio(1.4, 1.5, 1.6)


def choice(technique: str, value: int | str, preserves: Preserves = Preserves.ROUNDING) -> Choice:
    return Choice(technique=technique, value=value, preserves=preserves)


SPLIT, THREADS, FLUSH = choice("microbatch", 4), choice("threads", 1), choice("flush_denormals", True)
BF16 = choice("precision", "bf16", Preserves.STATISTICS)


def claiming(preserves: Preserves, *choices: Choice) -> Choices:
    return tuple(choice(each.technique, each.value, preserves) for each in choices)


def arms(function: str = "job") -> Arms:
    return Arms(f"{JOBS}:{function}")


def texts(choices: Choices) -> list[str]:
    return [str(each) for each in choices]


@dataclass
class Judged:
    """What was proven of some choices, and how often somebody was asked."""

    proofs: list[Proven]
    asked: list[str]

    @property
    def passed(self) -> list[str]:
        return [str(each.choice) for each in self.proofs if each.passes]

    def reason(self, choice: Choice) -> str:
        return next(each.reason for each in self.proofs if each.choice == choice)


def by_gradients(folder: Path, *choices: Choice) -> Judged:
    asked = list[str]()
    prover = JobProver(arms(), folder, steps=4)
    proofs, _ = gradient_proof.by_gradients(prover.judge_gradients, choices, lambda doing: asked.append(doing.what))
    return Judged(proofs, asked)


def by_losses(*choices: Choice) -> tuple[Judged, Curves | None]:
    asked = list[str]()
    runs = ShortRuns(first_seed=0, steps=STEPS)

    def report(doing: Doing) -> None:
        asked.extend([doing.what] * (not doing.whole))

    proofs, curves = short_runs.by_losses(arms(), runs, choices, None, report)
    return Judged(proofs, asked), curves


# ── by gradients ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.proof
@pytest.mark.trap(50)
def test_choices_that_are_harmful_only_together_are_not_both_kept(tmp_path, plant):
    plant("microbatch + threads")
    found = by_gradients(tmp_path, SPLIT, THREADS, FLUSH)
    assert found.passed == ["microbatch = 4", "flush_denormals = true"]
    assert found.reason(THREADS).startswith("fails together with microbatch = 4: the gradient")
    assert found.asked[-1] == "proving the gradients of microbatch = 4, flush_denormals = true"
    assert len(found.asked) == len(set(found.asked)) == 4


@pytest.mark.proof
@pytest.mark.trap(50)
def test_what_claims_bits_is_in_the_plan_whose_gradients_are_proven_and_what_claims_statistics_is_not(tmp_path, plant):
    plant("microbatch + flush_denormals, precision")
    found = by_gradients(tmp_path, SPLIT, *claiming(Preserves.BITS, FLUSH), BF16)
    assert (found.passed, len(found.proofs)) == ([], 1)
    plant("precision")
    assert by_gradients(tmp_path, SPLIT, BF16).passed == ["microbatch = 4"]


# ── by losses ───────────────────────────────────────────────────────────────────────────────────────────────────────

LOOSE = (BF16, *claiming(Preserves.STATISTICS, THREADS, FLUSH))


@pytest.mark.proof
@pytest.mark.trap(50)
def test_a_harm_of_two_choices_costs_one_of_them_and_not_all(plant):
    plant("precision + threads")
    found, curves = by_losses(*LOOSE)
    assert found.passed == ["precision = bf16", "flush_denormals = true"]
    assert found.reason(LOOSE[1]).startswith(
        "fails together with precision = bf16: the first 12 steps: early training loss is harmed"
    )
    assert curves is not None
    assert curves.verdict == "equivalent"  # of what is left
    assert len(found.asked) == 4


@pytest.mark.parametrize("unharmed", [False, True])
def test_a_proof_by_losses_that_is_inconclusive_keeps_whether_a_harm_is_ruled_out(unharmed, monkeypatch):
    empty = Curves(seeds=(), plain=(), planned=(), verdict="inconclusive", sentence="…", unharmed=unharmed)
    monkeypatch.setattr(short_runs, "paired_curves", lambda *asked: empty)
    [proof], _ = short_runs.by_losses(arms(), ShortRuns(first_seed=0, steps=STEPS), (BF16,), None, lambda doing: None)
    assert (proof.passes, proof.inconclusive, proof.unharmed) == (True, True, unharmed)


def test_where_the_plain_job_fails_nobody_is_blamed_and_nobody_is_asked_again(plant):
    plant(failing="nothing")
    found, curves = by_losses(*LOOSE)
    assert {each.reason for each in found.proofs} == {
        "its losses could not be compared: the baseline crashed: ZeroDivisionError: as planted"
    }
    assert (found.passed, curves, len(found.asked)) == ([], None, 1)


# ── all of them ─────────────────────────────────────────────────────────────────────────────────────────────────────


def log_of(*tried: Tried) -> tuple[SearchLog, list[Record], list[str]]:
    kept, asked = list[Record](), list[str]()
    found = SearchLog(options=Options(), keep=kept.append, report=lambda doing: asked.append(doing.what))
    found.tried.extend(tried)
    return found, kept, asked


def proven(base: Choices, log: SearchLog, function: str = "job") -> Choices:
    return prove(arms(function), base, log, ShortRuns(first_seed=0, steps=STEPS))


class TooSlow:
    """A prover whose gradients take longer than there is time."""

    def __init__(self, arms: Arms, folder: Path) -> None: ...

    def recipe_of(self, plan: Plan) -> Recipe:
        return {}

    def judge_gradients(self, plan: Plan) -> Answer:
        raise OutOfTime


@pytest.mark.parametrize(("seconds", "answered"), [(600.0, 1), (0.0, 0)])
def test_what_has_no_answer_when_the_time_of_the_proofs_is_over_is_not_in_the_plan(seconds: float, answered: int):
    exact, (log, kept, _) = claiming(Preserves.BITS, FLUSH), log_of()
    runs = ShortRuns(first_seed=0, steps=STEPS)
    assert prove(arms(), (*exact, THREADS, BF16), log, runs, TooSlow, seconds=seconds) == exact[:answered]
    rejected = [each for each in kept if isinstance(each, Proven) and not each.passes]
    assert [each.choice for each in rejected] == [*exact, THREADS, BF16][answered:]
    assert {(each.reason, each.unanswered) for each in rejected} == {
        (f"not proven in time: the proofs were ended after {seconds:.0f} s", True)
    }


@pytest.mark.proof
def test_a_job_without_gradients_to_judge_has_its_choices_judged_by_losses_and_the_plan_says_so(plant):
    plant("threads")
    log, kept, _ = log_of()
    assert texts(proven((FLUSH, THREADS), log, "drawing")) == ["flush_denormals = true"]
    passed, failed = (record for record in kept if isinstance(record, Proven))
    assert (passed.passes, passed.by_losses, failed.passes, failed.by_losses) == (True, True, False, True)
    assert passed.gradient_error is None
    assert "; losses were compared because no gradient of this job can be judged: its loss draws" in passed.reason
    assert records_of([line_of(passed) + "\n"]) == [passed]
    surveyed = next(record for record in sample_records() if isinstance(record, Surveyed))
    confirmed = Confirmed(choices=(FLUSH,), speedup=SPEEDUP, noise=SPEEDUP, plain=COSTS, planned=COSTS, earned=())
    [planned] = plan_found(surveyed, confirmed, (), log.proofs).choices
    assert planned.proof == Proof(losses=passed.reason)
