"""Keep the loader's worker processes between epochs.

What it does: worker processes stay alive at the end of an epoch and serve the next one, instead of starting again.

Why it is faster: no batch arrives while workers start. A worker that starts as a new Python process also imports torch
and reads the data set again. The shorter the epochs, the larger this share of the run.

When it loses: workers keep their memory while other workers run, for example during an evaluation.

What it changes: nothing ("bit-exact"). The same batches come in the same order.

Limits: workers have their own copy of the data set, so a change to it in the training process between epochs has no
effect. It needs worker processes, not threads, and more than one epoch.

Example:

    [[choice]]
    technique = "persistent_workers"
    value = true
"""

from __future__ import annotations

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import check_true
from hasten.techniques.common.reading_ahead import why_no_process_reads
from hasten.techniques.contract import No, Technique, Yes, proposing
from hasten.techniques.setup import Setup


def applies(setup: Setup) -> Yes | No:
    why = why_no_process_reads(setup)
    if why is not None:
        return No(why)
    if setup.loader.persistent_workers:
        return No("persistent_workers is already on")
    return No("the run has only one epoch") if setup.job.epochs == 1 else Yes()


def apply(setup: Setup, choice: Choice) -> None:
    check_true(choice)
    setup.loader.persistent_workers = True


TECHNIQUE = Technique(
    name="persistent_workers",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values="true",
    costs=("the memory of the workers between epochs",),
    source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    applies=applies,
    candidates=proposing("persistent_workers", Preserves.BITS, True),
    apply=apply,
)
