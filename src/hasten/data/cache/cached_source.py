"""A source as the plan wants it stored: its steady part from a cache on disk, or all of it as columns in memory.

Either gives the same samples with the same random numbers in the same batches. A source that cannot be stored, also for
a sample that cannot be read, is read without, with a notice that says why; other failures are errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils.data import TensorDataset, default_collate

from hasten.data.cache.cache_building import open_cache
from hasten.data.cache.repeated_reading import Unreadable
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.augmented import seam_of, takes_draws
from hasten.data.sources.column_gather import Rows
from hasten.data.sources.columns_in_memory import (
    DEVICE_SHARE,
    HOST_SHARE,
    bytes_of,
    check_fits,
    columns_on,
    rank_share,
    read_columns,
)
from hasten.data.sources.job_data import Source
from hasten.facts.machine import Machine, free_memory


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is notified while samples are stored, which can take minutes."""

    say: Callable[[str], None]
    progress: Callable[[int, int], None]  # samples done, samples in all
    of_cache: Watcher | None = None  # is notified of caches, which one rank builds for all; None: this one


class _NotStored(Exception):
    """The source is read without; the message says why."""


def stored(source: Source, options: LoaderOptions, device: torch.device, machine: Machine, watcher: Watcher) -> Source:
    """The source to read from. Raises what open_cache and read_columns raise but Unreadable, and OutOfMemory."""
    ways = [
        (options.cache, _cached, "is not cached"),
        (options.in_memory, _in_memory, "is not held in memory as columns"),
    ]
    for wanted, store, fails in ways:
        if wanted:
            try:
                source = store(source, options, device, machine, watcher)
            except (_NotStored, Unreadable) as error:
                why = f"sample {error.index} cannot be read: {error.reason}" if isinstance(error, Unreadable) else error
                source = replace(source, notices=(*source.notices, f"{source.field} {fails}: {why}"))
    return source


def why_not_cached(source: Source) -> str | None:
    """Why the samples of a source cannot come from a cache; None when they can, as far as is known unread."""
    if source.reads_model is not None:
        return source.why_not_ahead
    if source.iterable:
        return "it is a stream, which has no sample of a given number"
    if source.gathers:
        return "its samples are columns in memory already"
    seam = seam_of(source.dataset)
    if seam is None:
        write = "write hasten.Augmented(dataset, transform), with one transform around all parts of a ConcatDataset"
        return f"which part of its samples is the same each time is not known: {write}"
    if type(seam.steady) in (list, tuple, range, TensorDataset, Rows):
        return "its samples are in memory already"
    return None


def why_not_in_memory(source: Source) -> str | None:
    """Why the samples of a source cannot become columns; None when they can, as far as is known unread."""
    if source.gathers:
        return None
    if source.reads_model is not None:
        return source.why_not_ahead
    if source.iterable:
        return "it is a stream, which cannot be gathered from"
    if source.collate is not default_collate:
        return "its batches are made by a collate function of the job's own"
    if takes_draws(source.dataset):
        return "it makes its batches itself from what it reads, which the technique `cache` can store"
    seam = seam_of(source.dataset)
    if seam is None or not seam.whole:
        return "its samples may be different each time"
    return None


def _cached(source: Source, options: LoaderOptions, device: torch.device, machine: Machine, watcher: Watcher) -> Source:
    if (why := why_not_cached(source)) is not None:
        raise _NotStored(why)
    seam = seam_of(source.dataset)
    assert seam is not None
    folder = options.cache if isinstance(options.cache, Path) else None
    notified = watcher.of_cache or watcher
    cached = open_cache(seam.steady, folder, progress=notified.progress, say=notified.say, version=seam.version)
    return replace(source, dataset=seam.rebuilt(cached))


def _in_memory(
    source: Source, options: LoaderOptions, device: torch.device, machine: Machine, watcher: Watcher
) -> Source:
    why = why_not_in_memory(source)
    if why is None and options.in_memory == "device" and device.type == "cpu":
        why = "this job computes on the processor, whose memory is the host's"
    if why is not None:
        raise _NotStored(why)
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
    return replace(source, columns=columns_on(source.columns, device))
