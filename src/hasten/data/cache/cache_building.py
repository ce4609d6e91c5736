"""The steady part of a data set, decoded once and stored on disk.

Samples are read once, written into a folder named after what they were made of (cache_key.py), and read from a memory
map after that (cache_file.py). What is random is done to each sample that comes from the cache.

    folder/                        ~/.cache/hasten, or the folder that the plan names
    ├── <key>/                     a whole cache, under its name only when all of it is on the disk
    ├── .<key>.<token>.tmp/        one that is being built, or what a builder that was killed left behind
    └── .<key>.lock                held by who builds it; the system frees it when that process ends

Two processes never build the same one: the second waits for the lock, and then finds the cache. Who builds a cache
removes first what a killed builder of it left. A cache that no run uses any more is not removed.

Samples that are known to draw no random number (steady_reason) are read by as many threads as there are cores.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hasten.checkpoint import files
from hasten.checkpoint.folders.private_folders import ELSEWHERE, check_own, own_folder, user_caches
from hasten.checkpoint.locks.file_lock import locked
from hasten.data.cache.cache_file import SCHEMA, Cached, Damaged, Writer
from hasten.data.cache.cache_key import key_of
from hasten.data.cache.repeated_reading import SteadyReader
from hasten.data.cache.sample_format import Packed
from hasten.data.order.randomness import undisturbed
from hasten.data.sources.augmented import steady_reason
from hasten.data.workers.hang_limit import Patience
from hasten.data.workers.loader_threads import LoaderThreads
from hasten.errors import DataFailed, StorageFailed
from hasten.facts.formatting import byte_size
from hasten.facts.machine import usable_cores

TOGETHER = 4  # samples that a thread reads before it is asked again
AHEAD = 1  # such groups, of each thread
MOST_READERS = 8  # one thread writes what they read, and more would wait for it

Progress = Callable[[int, int], None]  # samples done, samples in all
Say = Callable[[str], None]


def open_cache(
    dataset: Any,
    folder: Path | None = None,
    *,
    progress: Progress = lambda done, samples: None,
    say: Say = lambda text: None,
    version: int = 0,
) -> Cached:
    """The samples of a steady map-style data set from its cache, which is built when there is none that is whole.

    folder: where caches lie; None: user_caches().
    progress: called with samples done and in all while one is built.
    say: called with what a person should know: what is built, how long it will take, what was damaged.
    version: of what the key does not see; see cache_key.py.

    Raises DataFailed, naming the sample, for one that is not steady or cannot be stored, and naming the place for a
    part of the data set whose changes could not be noticed; Unreadable for a sample that cannot be read; StorageFailed
    when the cache does not fit, is another user's, or cannot be written.
    """
    if len(dataset) == 0:
        raise DataFailed("a data set with 0 samples cannot be cached", fix="check its path")
    key, base = key_of(dataset, SCHEMA, version), _prepared(folder)
    cached = _whole(base / key, lambda text: None)
    if cached is not None:
        return cached
    with locked(base / f".{key}.lock", lambda: say(f"another process builds {base / key}: waiting for it")):
        cached = _whole(base / key, say)  # it may have been built meanwhile
        if cached is not None:
            return cached
        for left in base.glob(f".{key}.*.tmp"):
            files.remove_folder(left)
        _build(dataset, base, key, progress, say)
        return Cached(base / key)


def _prepared(folder: Path | None) -> Path:
    """A folder that the plan names may be others' too: who named it knows."""
    if folder is None:
        return own_folder(user_caches(), ELSEWHERE)
    files.make_private_folder(folder.absolute())
    return folder.absolute()


def _whole(target: Path, say: Say) -> Cached | None:
    """The cache, if there is one that is whole."""
    if not os.path.lexists(target):
        return None
    check_own(target, "name another folder for the cache")
    try:
        return Cached(target)
    except Damaged as error:
        say(f"{error}: the cache is rebuilt")
        return None


def _build(dataset: Any, base: Path, key: str, progress: Progress, say: Say) -> None:
    with undisturbed():
        reader = SteadyReader(dataset)
        estimate = reader.check_spread()
        free = shutil.disk_usage(base).free
        if estimate.bytes > free:
            what = f"the cache would take about {byte_size(estimate.bytes)}, and {byte_size(free)} are free"
            raise StorageFailed(what, where=str(base), fix="free space, or name a folder on another disk")
        say(
            f"building a cache of {len(dataset)} samples of {type(dataset).__qualname__} in {base / key}: "
            f"about {byte_size(estimate.bytes)} and {estimate.seconds / _readers(dataset):.0f} s"
        )
        building = base / f".{key}.{secrets.token_hex(4)}.tmp"
        files.make_private_folder(building)
        try:
            writer = Writer(building, key)
            try:
                _write(reader, writer, progress)
                writer.finish()
            finally:
                writer.abandon()
            files.remove_folder(base / key)  # a damaged one, or none; half removed it is as damaged as before
            files.rename_folder(building, base / key)
        except BaseException:
            with suppress(StorageFailed):  # the first failure is the one to raise; the next start tries again
                files.remove_folder(building)
            raise


def _write(reader: SteadyReader, writer: Writer, progress: Progress) -> None:
    count = len(reader.dataset)
    every = max(1, count // 1000)
    for index, packed in enumerate(_packed_in_order(reader)):
        writer.add(packed)
        if (index + 1) % every == 0 or index + 1 == count:
            progress(index + 1, count)


def _readers(dataset: Any) -> int:
    """How many threads read it."""
    return 1 if steady_reason(dataset) is None else min(usable_cores(), MOST_READERS)


def _packed_in_order(reader: SteadyReader) -> Iterator[Packed]:
    """Raises what reader.packed raises, and Hang when no thread answers for longer than a loader waits."""
    count = len(reader.dataset)

    def read(first: int) -> list[Packed]:
        return [reader.packed_unseeded(index) for index in range(first, min(first + TOGETHER, count))]

    if _readers(reader.dataset) == 1:
        yield from map(reader.packed, range(count))
        return
    threads = LoaderThreads(read, _readers(reader.dataset), AHEAD, lambda: Patience().limit(0.0))
    try:
        with reader.seeded_once():
            for group in threads.answers(range(0, count, TOGETHER)):
                yield from group
    finally:
        threads.close()
