"""`hasten prove loss` adds the losses that it compared to the file of trials beside the plan, for the plan's report.

It adds them only to the trials of a search of the same job, by its key, that confirmed the choices of this plan. Any
other file stays unchanged.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.checkpoint.files import GrowingFile
from hasten.errors import PlanError, StorageFailed
from hasten.facts.plan import Plan, ProvenOn
from hasten.facts.trials import LONGEST_LINE, Confirmed, Record, Surveyed, line_of, read_trials, trials_beside

if TYPE_CHECKING:
    from hasten.tune.proof.loss_proof import LossProof
    from hasten.tune.trials.arms import Arms


def trials_of(arms: Arms, path: Path, plan: Plan) -> Path | None:
    """The file of trials that the losses of this plan belong to; None if there is none.

    path: of the plan. Raises ArmFailed when the job cannot be built.
    """
    trials = trials_beside(path)
    if not trials.is_file():
        return None
    try:
        records = read_trials(trials)
    except (PlanError, StorageFailed):  # `hasten report` says what is wrong with it
        return None
    surveyed = [record for record in records if isinstance(record, Surveyed)]
    return trials if _confirms(records, plan) and surveyed and surveyed[-1].key in _present_keys(arms) else None


def add_losses(proof: LossProof, trials: Path | None, path: Path) -> str:
    """A line about where the losses were added; empty if they belong to no trials. path: of the plan."""
    from hasten.tune.proof.loss_proof import curves_of

    curves = curves_of(proof, proof.sentence)
    if trials is None or proof.interrupted or proof.failure is not None or not curves.seeds:
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


def _confirms(records: Sequence[Record], plan: Plan) -> bool:
    """Whether the plan confirmed last is this one."""
    from hasten.tune.search.candidates import same_choices

    confirmed = [record.choices for record in records if isinstance(record, Confirmed)]
    return bool(confirmed) and same_choices(confirmed[-1], [planned.choice for planned in plan.choices])


def _present_keys(arms: Arms) -> list[str]:
    """The keys of a search started now, without `--busy` and with it: losses do not depend on the load."""
    from hasten.tune.trials.search_key import environment_of, key_of

    with arms.start("profile", Plan()) as arm:
        survey = arm.ask("survey")
    environment = environment_of(ProvenOn(**survey["proven_on"]))
    return [key_of(survey, environment, busy=busy) for busy in (False, True)]
