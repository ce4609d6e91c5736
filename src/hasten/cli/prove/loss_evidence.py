"""`hasten prove loss` adds the losses that it compared to the file of trials beside the plan, for the plan's report.

It adds them only to the trials of a search of the same job that confirmed the choices of this plan. Any other file
stays unchanged.
"""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.checkpoint.files import GrowingFile
from hasten.errors import PlanError, StorageFailed
from hasten.facts.plan import Plan
from hasten.facts.trials import LONGEST_LINE, Confirmed, Surveyed, line_of, read_trials, trials_beside

if TYPE_CHECKING:
    from hasten.tune.proof.loss_proof import LossProof


def add_losses(proof: LossProof, job: str, path: Path, plan: Plan) -> str:
    """A line about where the losses were added; empty if they belong to no trials. path: of the plan."""
    from hasten.tune.proof.loss_proof import curves_of

    trials, curves = trials_beside(path), curves_of(proof, proof.sentence)
    if proof.interrupted or proof.failure is not None or not curves.seeds or not _are_of(trials, job, plan):
        return ""
    line = line_of(curves)
    if len(line) >= LONGEST_LINE:
        return f"the losses are too many for {trials}"
    try:
        with closing(GrowingFile(trials)) as file:
            file.add_line(line.encode())
    except StorageFailed as error:
        return f"the losses were not saved: {error.where}: {error.what}"
    return f"{shlex.join(['hasten', 'report', str(path)])} now shows these losses"


def _are_of(trials: Path, job: str, plan: Plan) -> bool:
    """Whether the last search in this file was of this job, and confirmed the plan's choices."""
    from hasten.tune.search.candidates import same_choices

    try:
        records = read_trials(trials) if trials.is_file() else []
    except (PlanError, StorageFailed):  # `hasten report` says what is wrong with it
        return False
    jobs = [record.job for record in records if isinstance(record, Surveyed)]
    confirmed = [record.choices for record in records if isinstance(record, Confirmed)]
    ours = [planned.choice for planned in plan.choices]
    return jobs[-1:] == [job] and bool(confirmed) and same_choices(confirmed[-1], ours)
