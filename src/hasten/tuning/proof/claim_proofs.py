"""Proves what the choices that won claim, one proof after the other: the recipe of the training, which no choice may
change (recipe_proof.py); bits (bits_proof.py); rounding, by gradients (gradient_proof.py); equal statistics, by losses
of short runs (short_runs.py). What fails in one is not in the plan of the next.

No proof is taken from an earlier search: a file of trials is data that anybody may have written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan
from hasten.facts.trials import Proven
from hasten.tuning.proof.answers import Answer, Choices, claiming
from hasten.tuning.proof.bits_proof import by_bits
from hasten.tuning.proof.gradient_proof import by_gradients
from hasten.tuning.proof.job_prover import JobProver
from hasten.tuning.proof.recipe_proof import Recipe, by_recipe
from hasten.tuning.proof.short_runs import ShortRuns, by_losses
from hasten.tuning.search.candidates import changes_training, is_proven_by_bits, without
from hasten.tuning.search.search_log import SearchLog
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import OutOfTime


class Prover(Protocol):
    """Of a job, or of a script. judge_gradients: whether they are the baseline's up to rounding. recipe_of: empty of a
    job, which hasten's own loop trains; raises ArmFailed."""

    def judge_gradients(self, plan: Plan) -> Answer: ...

    def recipe_of(self, plan: Plan) -> Recipe: ...


def prove(
    arms: Arms,
    base: Choices,
    log: SearchLog,
    runs: ShortRuns,
    prover: Callable[[Arms, Path], Prover] = JobProver,
    *,
    seconds: float = math.inf,
) -> Choices:
    """The choices of a plan that preserve what they claim. Every proof is added to the log. prover: is given an empty
    folder for its files. seconds: after which the proofs end, and what has no answer is not in the plan."""
    plan = _PlanInProof(base, log)
    try:
        with arms.ending_within(seconds):
            _prove_all(arms, plan, runs, prover)
    except OutOfTime:
        plan.drop_unanswered(f"not proven in time: the proofs were ended after {seconds:.0f} s")
    return plan.choices


def _prove_all(arms: Arms, plan: _PlanInProof, runs: ShortRuns, prover: Callable[[Arms, Path], Prover]) -> None:
    report = plan.log.report
    # Bytes of the job's own numbers: a folder that others cannot read, removed with the block.
    with TemporaryDirectory(prefix="hasten-proof-", dir=arms.place) as folder:
        proves = prover(arms, Path(folder))
        plan.add(by_recipe(proves.recipe_of, plan.choices, report))
        plan.add(by_bits(arms, plan.choices, report), filter(is_proven_by_bits, plan.choices))
        proofs, unjudged = by_gradients(proves.judge_gradients, plan.choices, report)
    plan.add(proofs, () if unjudged is not None else claiming(plan.choices, Preserves.ROUNDING))
    proofs, curves = by_losses(arms, runs, plan.choices, unjudged, report)
    plan.add(proofs, plan.choices)
    if curves is not None:
        plan.log.keep(curves)


@dataclass
class _PlanInProof:
    """choices: that no proof has rejected."""

    choices: Choices
    log: SearchLog
    _answered: list[Choice] = field(default_factory=list[Choice])

    def add(self, proofs: Sequence[Proven], answered: Iterable[Choice] = ()) -> None:
        """answered: choices all of whose proofs are over."""
        self._answered += answered
        for proof in proofs:
            self.log.add(proof)
        self.choices = without(self.choices, *(each for each in self.choices if not self.log.is_sound(each)))

    def drop_unanswered(self, reason: str) -> None:
        open_ = without(self.choices, *self._answered, *filter(changes_training, self.choices))
        self.add([Proven(choice=each, passes=False, reason=reason, unanswered=True) for each in open_])
