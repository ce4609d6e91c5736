"""Decode every sample once, and read it from a memory map ever after.

What it does: reads the steady part of the data set, the one whose samples are always the same, writes it decoded to
disk, and gives the data set's own code that instead of the files. Whatever is random is still done anew to each sample,
with the same random numbers as before. The first run builds the cache; when the files, the code that reads them or a
setting of it changes, the next run builds it anew.

The data set must say which part is steady: hasten.ImageFolder does, hasten.Augmented(dataset, transform) says it for
any other, and a data set of one's own may have the two members that Augmented has.

Why it is faster: decoding a compressed picture takes far longer than reading it decoded. The system keeps what is read
often in memory, once for all workers and all processes on the machine.

When it loses: the cache is many times larger than compressed files; once it does not fit into memory, a slow disk can
take longer than decoding. The time to build it must be earned back by the epochs that are left.

What it gave up: disk space. No sample changes by a bit: samples carry a checksum, and a damaged one ends the run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hasten.data.cache.cached_source import why_not_cached
from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if setup.train is None:
        return No("there is no training data yet")
    why = why_not_cached(setup.train)
    if why is not None:
        return No(f"Job.train: {why}")
    return No("the samples come from a cache already") if setup.loader.cache else Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="cache", value=True, preserves=Preserves.BITS)]


def apply(setup: Setup, choice: Choice) -> None:
    if choice.value is True and not choice.options:
        setup.loader.cache = True
        return
    # Path.expanduser raises for a user that there is not; this one leaves the text as it is, which is then refused.
    folder = Path(os.path.expanduser(choice.value)) if isinstance(choice.value, str) and not choice.options else None
    if folder is None or not folder.is_absolute():
        raise PlanError(
            f"the plan asks for {choice}",
            where="cache",
            fix='write true, or a folder by its whole path: "/fast/disk/cache"',
        )
    setup.loader.cache = folder


TECHNIQUE = Technique(
    name="cache",
    stage=Stage.DATA,
    treats=Symptom.DEVICE_IDLE,
    values="true, or the folder for it by its whole path, without options",
    costs=("disk space for every decoded sample", "the time to decode every sample once, before the first run"),
    source="https://numpy.org/doc/stable/reference/generated/numpy.memmap.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
