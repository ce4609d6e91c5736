"""The losses that `hasten prove loss` has compared, added to the file of trials beside the plan, for its report.

They are added only where they belong: to the trials of a search of this very job, by its key, that has confirmed the
choices of this plan. Any other file is left as it is.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.checkpoint.files import open_for_append
from hasten.errors import PlanError, StorageFailed
from hasten.facts.plan import Plan, ProvenOn
from hasten.facts.trials import LONGEST_LINE, Confirmed, Record, Surveyed, line_of, read_trials, trials_beside

if TYPE_CHECKING:
    from hasten.tune.proof.loss_proof import LossProof
    from hasten.tune.trials.arms import Arms


def trials_of(arms: Arms, path: Path, plan: Plan) -> Path | None:
    """The file of trials that losses of this plan belong to; None where there is none.

    path: of the plan. Raises ArmFailed when the job cannot be built.
    """
    trials = trials_beside(path)
    if not trials.is_file():
        return None
    try:
        records = read_trials(trials)
    except (PlanError, StorageFailed):  # it is no file to add to; `hasten report` tells what is wrong with it
        return None
    surveyed = [record for record in records if isinstance(record, Surveyed)]
    return trials if _confirms(records, plan) and surveyed and surveyed[-1].key in _present_keys(arms) else None


def add_losses(proof: LossProof, trials: Path | None, path: Path) -> str:
    """What has become of the losses, for a person to read; empty where they belong to no trials. path: of the plan."""
    from hasten.tune.proof.loss_proof import curves_of

    curves = curves_of(proof, proof.sentence)
    if trials is None or proof.interrupted or proof.failure is not None or not curves.seeds:
        return ""
    line = line_of(curves)
    if len(line) >= LONGEST_LINE:
        return f"the losses are too many for {trials}"
    try:
        with closing(open_for_append(trials)) as file:
            file.add_line(line.encode())
    except StorageFailed as error:
        return f"the losses are not kept: {error.where}: {error.what}"
    return f"{shlex.join(['hasten', 'report', str(path)])} now shows these losses"


def _confirms(records: Sequence[Record], plan: Plan) -> bool:
    """Whether the last plan that was confirmed is this one."""
    from hasten.tune.search.candidates import same

    confirmed = [record.choices for record in records if isinstance(record, Confirmed)]
    if not confirmed or len(confirmed[-1]) != len(plan.choices):
        return False
    return all(any(same(one, planned.choice) for planned in plan.choices) for one in confirmed[-1])


def _present_keys(arms: Arms) -> list[str]:
    """Of the searches that could begin now, without `--busy` and with it: losses do not depend on the load."""
    from hasten.tune.trials.search_key import environment_of, key_of

    with arms.start("look", Plan()) as arm:
        told = arm.ask("survey")
    environment = environment_of(ProvenOn(**told["proven_on"]))
    return [key_of(told, environment, busy=busy) for busy in (False, True)]
