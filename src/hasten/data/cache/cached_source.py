"""A source as the plan wants it kept: its steady part from a cache on disk, or all of it as columns in memory.

Either gives the same samples with the same random numbers in the same batches. Where the plan asks for what a source
cannot have, the source stays as it is, with a notice that says why; what should work and fails is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset, default_collate

from hasten.data.cache.cache_building import open_cache
from hasten.data.cache.repeated_reading import OnBad, Unreadable
from hasten.data.images.image_folder import ImageFolder
from hasten.data.loading.bad_samples import Ledger, Replaced
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.augmented import Seam, seam_of, steady_rows
from hasten.data.sources.column_gather import Rows
from hasten.data.sources.columns_in_memory import (
    DEVICE_SHARE,
    HOST_SHARE,
    as_collated,
    bytes_of,
    check_fits,
    moved,
    rank_share,
    read_columns,
)
from hasten.data.sources.job_data import Source
from hasten.data.sources.known_steady import takes_draws
from hasten.facts.machine import Machine, free_memory


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told while samples are kept, which can take minutes."""

    say: Callable[[str], None]
    progress: Callable[[int, int], None]  # samples done, samples in all
    of_cache: Watcher | None = None  # is told of caches, which one rank builds for all of them; None: this one


def kept(
    source: Source,
    options: LoaderOptions,
    device: torch.device,
    machine: Machine,
    watcher: Watcher,
    replace_bad: bool = False,
) -> Source:
    """The source to read from. Raises what open_cache and read_columns raise, and OutOfMemory.

    replace_bad: other samples will stand in for those that cannot be read, so these end nothing here.
    """
    if options.cache:
        source = _cached(source, options, watcher, replace_bad)
    if options.in_memory:
        try:
            source = _in_memory(source, options, device, machine, watcher)
        except Unreadable as bad:
            if not replace_bad:
                bad.stop()
            why = f"sample {bad.index} cannot be read, and columns have no place for another: {bad.reason}"
            source = _with_notice(source, f"{source.field} is not held in memory as columns: {why}")
    return source


def why_not_cached(source: Source) -> str | None:
    """Why the samples of a source cannot come from a cache; None when they can, as far as can be told unread."""
    if source.reads_model is not None:
        return source.why_not_ahead
    if source.iterable:
        return "it is a stream, which has no sample of a given number"
    if source.gathers:
        return "its samples are columns in memory already"
    seam = seam_of(source.dataset)
    if seam is None:
        return f"which part of its samples is the same each time is not known: {_how_to_say(source.dataset)}"
    if type(seam.steady) in (list, tuple, range, TensorDataset, Rows):
        return "its samples are in memory already"
    return None


def _how_to_say(dataset: Any) -> str:
    if type(dataset) is Subset:
        return _how_to_say(dataset.dataset)
    parts = dataset.datasets if type(dataset) is ConcatDataset else []
    if any(isinstance(part.dataset if type(part) is Subset else part, ImageFolder) for part in parts):
        return "hasten.ImageFolders in a ConcatDataset are read as one if all have the same view, mean and deviation"
    if any(seam_of(part) is not None for part in parts):
        return "write hasten.Augmented(ConcatDataset([…]), transform), with one transform around all its parts"
    return "write hasten.Augmented(dataset, transform)"


def why_not_in_memory(source: Source) -> str | None:
    """Why the samples of a source cannot become columns; None when they can, as far as can be told unread."""
    if source.gathers:
        return None
    if source.reads_model is not None:
        return source.why_not_ahead
    if source.iterable:
        return "it is a stream, which cannot be gathered from"
    if source.collate is not default_collate:
        return "its batches are made by a collate function of the job's own"
    if takes_draws(source.dataset):
        return "it makes its batches itself from what it reads, which the technique `cache` can keep"
    seam = seam_of(source.dataset)
    if seam is None or not seam.whole:
        return "its samples may be other ones each time, so each must be read anew"
    return None


def _cached(source: Source, options: LoaderOptions, watcher: Watcher, replace_bad: bool) -> Source:
    why = why_not_cached(source)
    if why is not None:
        return _with_notice(source, f"{source.field} is not cached: {why}")
    seam = seam_of(source.dataset)
    assert seam is not None
    folder = options.cache if isinstance(options.cache, Path) else None
    told, rows = watcher.of_cache or watcher, steady_rows(source.dataset)
    on_bad = _judge(source, seam, rows, replace_bad)
    cached = open_cache(
        seam.steady, folder, progress=told.progress, say=told.say, rows=rows, on_bad=on_bad, version=seam.version
    )
    source = replace(source, dataset=seam.rejoined(cached))
    if source.dataset is cached and not options.workers and source.collate is default_collate:
        # With workers, columns would be copied to each where processes are not forked.
        columns = cached.columns(watcher.progress)
        if columns is not None:
            return replace(source, columns=as_collated(columns))
    return source


def _judge(source: Source, seam: Seam, rows: np.ndarray | None, replace_bad: bool) -> OnBad:
    """Ends the building of a cache at a sample that would end the run. One that this job does not read is kept as bad,
    and no more: a cache is made of the whole steady part, and a job may read a part of that (Subset)."""
    ledger, read_as = Ledger(source.field, len(source.dataset)), _read_as(rows, len(seam.steady))

    def judge(bad: Unreadable) -> None:
        samples = read_as(bad.index)
        if samples and not replace_bad:
            bad.stop()
        ledger.take(Replaced(sample, sample, bad.reason) for sample in samples)

    return judge


def _read_as(rows: np.ndarray | None, count: int) -> Callable[[int], list[int]]:
    """By the number of one of `count` samples of a steady part: which samples of the job it is, none or several too."""
    if rows is None:
        return lambda row: [row]

    @cache
    def is_read() -> np.ndarray:  # asked first, because most of those that cannot be read may not be wanted either
        return np.isin(np.arange(count), rows)

    return lambda row: np.flatnonzero(rows == row).tolist() if is_read()[row] else []


def _in_memory(
    source: Source, options: LoaderOptions, device: torch.device, machine: Machine, watcher: Watcher
) -> Source:
    why = why_not_in_memory(source)
    if why is None and options.in_memory == "device" and device.type == "cpu":
        why = "this job computes on the processor, whose memory is the host's"
    if why is not None:
        return _with_notice(source, f"{source.field} is not held in memory as columns: {why}")
    if not source.gathers:
        share = HOST_SHARE if options.in_memory_share is None else options.in_memory_share
        watcher.say(f"reading all {source.count} samples of {source.field} into memory")

        def check(needed: int) -> None:
            check_fits(needed, *rank_share(free_memory(), machine.ranks, share, "the host's free memory"))

        source = replace(source, columns=read_columns(source.dataset, check, watcher.progress))
    if options.in_memory == "host" or source.on_accelerator:
        return source
    assert source.columns is not None
    share = DEVICE_SHARE if options.in_memory_share is None else options.in_memory_share
    check_fits(bytes_of(source.columns), machine.accelerator_memory_bytes, share, "the device's memory")
    return replace(source, columns=moved(source.columns, device))


def _with_notice(source: Source, notice: str) -> Source:
    return replace(source, notices=(*source.notices, notice))
