"""Decode every sample once, and then read it from a memory map.

What it does: the first run decodes the deterministic part of every sample and writes it to disk. After that, samples
are read from this cache instead of the original files. Random transforms still run for each sample, with the same
random numbers as before. When the files, the code that reads them or one of its settings changes, the next run rebuilds
the cache.

Why it is faster: decoding a compressed image takes far longer than reading a decoded one. The operating system keeps
frequently read pages in memory, once for all workers and processes on the machine.

When it loses: the cache is many times larger than compressed files. Where it does not fit into memory, reading a slow
disk can take longer than decoding. The remaining epochs must pay for the time to build it.

What it changes: nothing ("bit-exact"). Each sample has a checksum, and a damaged sample ends the run.

Limits: the data set must say which part of a sample is deterministic. `hasten.ImageFolder` does; for any other data
set, write `hasten.Augmented(dataset, transform)`. Streams (iterable data sets) are refused, because their samples have
no index.

Example:

    [[choice]]
    technique = "cache"
    value = "/fast/disk/cache"
"""

from __future__ import annotations

import os
from pathlib import Path

from hasten.data.cache.cached_source import why_not_cached
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import refused
from hasten.techniques.contract import No, Technique, Yes, proposing
from hasten.techniques.setup import Setup


def applies(setup: Setup) -> Yes | No:
    if setup.train is None:
        return No("there is no training data yet")
    why = why_not_cached(setup.train)
    if why is not None:
        return No(f"Job.train: {why}")
    return No("the samples come from a cache already") if setup.loader.cache else Yes()


def apply(setup: Setup, choice: Choice) -> None:
    value = choice.value
    # Path.expanduser raises for an unknown user; this function returns the text unchanged, which is then refused.
    place = Path(os.path.expanduser(value)) if isinstance(value, str) else value
    if choice.options or not (place is True or (isinstance(place, Path) and place.is_absolute())):
        raise refused(choice, 'write true, or a folder by its whole path: "/fast/disk/cache"')
    setup.loader.cache = place


TECHNIQUE = Technique(
    name="cache",
    stage=Stage.DATA,
    treats=Symptom.DEVICE_IDLE,
    values="true for the default folder, or the absolute path of a folder",
    costs=("disk space for every decoded sample", "the time to decode every sample once, before the first run"),
    source="https://numpy.org/doc/stable/reference/generated/numpy.memmap.html",
    applies=applies,
    candidates=proposing("cache", Preserves.BITS, True),
    apply=apply,
)
