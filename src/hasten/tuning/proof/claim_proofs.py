"""Proves what the choices that won claim, one proof after the other: the recipe of the training, which no choice may
change (recipe_proof.py); bits (bits_proof.py); rounding, by gradients (gradient_proof.py); equal statistics, by losses
of short runs (short_runs.py). What fails in one is not in the plan of the next.

No proof is taken from an earlier search: a file of trials is data that anybody may have written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from hasten.facts.plan import Plan
from hasten.facts.trials import Proven
from hasten.tuning.proof.answers import Answer, Choices
from hasten.tuning.proof.bits_proof import by_bits
from hasten.tuning.proof.gradient_proof import by_gradients
from hasten.tuning.proof.job_prover import JobProver
from hasten.tuning.proof.recipe_proof import Recipe, by_recipe
from hasten.tuning.proof.short_runs import ShortRuns, by_losses
from hasten.tuning.search.candidates import without
from hasten.tuning.search.search_log import SearchLog
from hasten.tuning.trials.arms import Arms


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
) -> Choices:
    """The choices of a plan that preserve what they claim. Every proof is added to the log. prover: is given an empty
    folder for its files."""
    # Bytes of the job's own numbers: a folder that others cannot read, removed with the block.
    with TemporaryDirectory(prefix="hasten-proof-", dir=arms.place) as folder:
        proves = prover(arms, Path(folder))
        base = _sound(base, by_recipe(proves.recipe_of, base, log.report), log)
        base = _sound(base, by_bits(arms, base, log.report), log)
        proofs, unjudged = by_gradients(proves.judge_gradients, base, log.report)
    base = _sound(base, proofs, log)
    proofs, curves = by_losses(arms, runs, base, unjudged, log.report)
    base = _sound(base, proofs, log)
    if curves is not None:
        log.keep(curves)
    return base


def _sound(base: Choices, proofs: Sequence[Proven], log: SearchLog) -> Choices:
    """What is left of the base."""
    for proof in proofs:
        log.add(proof)
    return without(base, *(choice for choice in base if not log.is_sound(choice)))
