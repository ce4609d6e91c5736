"""Keep the loader's worker processes from one epoch to the next.

What it does: worker processes stay when an epoch is over and begin with the next one, instead of ending and being
started anew.

Why it is faster: a start takes time in which no batch comes. Where processes begin as a new Python, they also load
torch and read the data set again. The shorter the epochs, the more of the run that is.

When it loses: workers keep their memory while others work, as during an evaluation with workers of its own. A data set
that changes in the training process between epochs is not seen to change: the workers have their own copy.

What it gave up: nothing else. The same batches come in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.common.reading_ahead import why_no_process_reads
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup


def applies(setup: Setup, machine: Machine) -> Yes | No:
    why = why_no_process_reads(setup)
    if why is not None:
        return No(why)
    if setup.loader.persistent_workers:
        return No("the loader's workers stay already")
    return No("the run has one epoch") if setup.job.epochs == 1 else Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="persistent_workers", value=True, preserves=Preserves.BITS)]


def apply(setup: Setup, choice: Choice) -> None:
    if choice.value is not True or choice.options:
        raise PlanError(
            f"the plan asks for {choice}",
            where="persistent_workers",
            fix="write true, without options, or leave it out",
        )
    setup.loader.persistent_workers = True


TECHNIQUE = Technique(
    name="persistent_workers",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values="true",
    costs=("the workers' memory also between epochs",),
    source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
