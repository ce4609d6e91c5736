"""Hold all samples in memory as columns, and gather batches by index.

What it does: "host" reads every sample once, and stores each part of all samples as one tensor in the host's memory.
"device" stores these tensors in the accelerator's memory. A batch is then one gather for each part.

Options: `share`, the fraction of memory that samples may take, above 0 and at most 1.

Why it is faster: for small samples, running Python for each one and collating them takes longer than the step. With
"device" nothing is copied from the host either.

When it loses: the memory is missing for a larger batch, and for the operating system's file cache.

What it changes: nothing ("bit-exact").

Limits: every sample must be the same each time it is read, and all must have the same shapes. Data sets that draw
random numbers for a sample, streams, and collate functions of your own are refused. "device" needs an accelerator.

Example:

    [[choice]]
    technique = "in_memory"
    value = "device"
    options = { share = 0.5 }
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hasten.data.cache.cached_source import why_not_in_memory
from hasten.data.sources.columns_in_memory import DEVICE_SHARE, HOST_SHARE, bytes_of, each_of, rank_share, too_large
from hasten.data.sources.job_data import Source
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import is_number, refused
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup


def needed_bytes(setup: Setup, source: Source) -> int | None:
    """Bytes of all samples as columns, estimated from one batch where they are not columns yet; None where a batch
    contains no tensors."""
    if source.columns is not None:
        return bytes_of(source.columns)
    parts = each_of(setup.sample)
    rows = min((len(part) for part in parts if part.dim()), default=0)
    return sum(part.nbytes for part in parts) * (source.count or 0) // rows if rows else None


def applies(setup: Setup) -> Yes | No:
    source = setup.train
    if source is None:
        return No("there is no training data yet")
    why = why_not_in_memory(source)
    if why is not None:
        return No(f"Job.train: {why}")
    if source.on_accelerator:
        return No("the data is in the device's memory already")
    if source.gathers and setup.device.type == "cpu":
        return No("the data is columns in memory already, and this job runs on the CPU")
    needed = needed_bytes(setup, source)
    if needed is None:
        return No("the batches contain objects that are not tensors")
    choices = [*_choices(setup, needed)]
    if choices:
        return Yes()
    there, share, whose = _room(setup, "host" if setup.device.type == "cpu" else "device")
    return No(too_large(needed, there, share, whose) or "the samples do not fit into memory")


def candidates(setup: Setup) -> Sequence[Choice]:
    needed = needed_bytes(setup, setup.train) if setup.train is not None else None
    return [] if needed is None else [*_choices(setup, needed)]


def _choices(setup: Setup, needed: int) -> Iterator[Choice]:
    assert setup.train is not None
    for where in ("device", "host"):
        if (where == "device" and setup.device.type == "cpu") or (where == "host" and setup.train.gathers):
            continue
        if too_large(needed, *_room(setup, where)) is None:
            yield Choice(technique="in_memory", value=where, preserves=Preserves.BITS)


def _room(setup: Setup, where: str) -> tuple[int, float, str]:
    if where == "device":
        return setup.machine.accelerator_memory_bytes, DEVICE_SHARE, "the device's memory"
    return rank_share(setup.machine.memory_bytes, setup.machine.ranks, HOST_SHARE, "the host's memory")


def apply(setup: Setup, choice: Choice) -> None:
    if choice.value not in ("host", "device"):
        raise refused(choice, 'write "host" or "device"')
    share = choice.options.get("share")
    if choice.options.keys() - {"share"} or not (share is None or (is_number(share) and 0 < share <= 1)):
        raise refused(choice, "write share = a number above 0, at most 1: the fraction of memory for samples")
    setup.loader.in_memory_share = None if share is None else float(share)
    setup.loader.in_memory = choice.value  # pyright: ignore[reportAttributeAccessIssue]: one of the two


TECHNIQUE = Technique(
    name="in_memory",
    stage=Stage.DATA,
    treats=Symptom.DEVICE_IDLE,
    values='"host" or "device"; options: share (a number above 0, at most 1: the fraction of memory for samples; '
    f"default {HOST_SHARE} of the host's free memory, {DEVICE_SHARE} of the device's)",
    costs=("memory for all samples during the whole run", "every run first reads every sample once"),
    source="https://docs.pytorch.org/docs/stable/generated/torch.index_select.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
