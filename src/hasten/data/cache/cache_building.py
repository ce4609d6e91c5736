"""The steady part of a data set, decoded once and kept on disk.

To decode a picture takes far longer than to read it decoded, and it gives the same every time. So the samples are read
once, written into a folder named after what they were made of (cache_key.py), and read from a memory map ever after
(cache_file.py). What is random stays outside: it is done anew to each sample that comes from the cache.

    folder/                        ~/.cache/hasten, or the folder that the plan names
    ├── <key>/                     a whole cache, under its name only when all of it is on the disk
    ├── .<key>.<token>.tmp/        one that is being built, or what a builder that was killed left behind
    └── .<key>.lock                held by who builds it; the system frees it when that process ends

Two processes never build the same one: the second waits for the lock, and then finds the cache. Whoever opens a cache
removes what dead builders left; a live one holds its lock.

What this simple form gave up: one process builds, and reads one sample after the other where it is not known to draw no
random number (packing.py). A cache that no run uses any more is named, not removed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hasten.checkpoint import files
from hasten.checkpoint.folders.private_folders import ELSEWHERE, check_own, own_folder, user_caches
from hasten.checkpoint.locks.file_lock import locked
from hasten.data.cache.cache_file import SCHEMA, Cached, Damaged, Different, Writer, read_manifest
from hasten.data.cache.cache_key import told_by
from hasten.data.cache.cache_key_folders import changed_by_runs, check_outside
from hasten.data.cache.packing import packed_in_order, readers
from hasten.data.cache.repeated_reading import Estimate, OnBad, SteadyReader, Unreadable
from hasten.data.order.randomness import undisturbed
from hasten.errors import DataFailed, StorageFailed
from hasten.facts.formatting import byte_size

Progress = Callable[[int, int], None]  # samples done, samples in all
Say = Callable[[str], None]

_KEY = re.compile(r"[0-9a-f]{32}")
_LEFTOVER = re.compile(r"\.([0-9a-f]{32})\.[0-9a-f]+\.tmp")


def open_cache(
    dataset: Any,
    folder: Path | None = None,
    *,
    progress: Progress | None = None,
    say: Say | None = None,
    rows: np.ndarray | None = None,
    on_bad: OnBad | None = None,
    version: int = 0,
) -> Cached:
    """The samples of a steady map-style data set from its cache, which is built when there is none that is whole.

    folder: where caches lie; None: user_caches().
    progress: called with samples done and in all while one is built.
    say: called with what a person should know: what is built, how long it will take, what was damaged.
    rows: int64, the samples that will be read, of which some are read first, to see what they are; None: all of them.
        The cache has all of them in any case: another job may read the others.
    on_bad: called with every sample that cannot be read, in whose place the cache keeps why; it may raise, which ends
        the build. None: the first one ends it. A cache that keeps some is opened either way, and raises where one is
        read.
    version: of what the key does not see; see told_by.

    Raises DataFailed, naming the sample, for one that is not steady or cannot be kept, and naming the place for a part
    of the data set whose changes could not be told; UserCodeFailed when the data set raises; StorageFailed when the
    cache does not fit, is another user's, would lie in a folder that it is made of, or cannot be written.
    """
    say = say or _silent
    if len(dataset) == 0:
        raise DataFailed("a data set with 0 samples cannot be cached", fix="look at the path that it was made with")
    told = told_by(dataset, SCHEMA, version)
    check_outside(user_caches() if folder is None else folder, told.listed)
    key, base = told.key, _prepared(folder)
    found = _whole(base / key, key, _silent)
    if found is not None:
        _remove_leftovers(base, say)
        _say_bad(found, say)
        return found
    with locked(base / f".{key}.lock", lambda: say(f"another process builds {base / key}: waiting for it")):
        found = _whole(base / key, key, say)  # it may have been built meanwhile
        if found is None:
            _remove_leftovers(base, say, but_of=key)
            _remove_own_leftovers(base, key)
            for text in changed_by_runs(told.listed):
                say(text)
            _build(dataset, base, key, progress or _no_progress, say, rows, on_bad or Unreadable.stop)
            found = Cached(base / key)
    _say_bad(found, say)
    return found


def _prepared(folder: Path | None) -> Path:
    """A folder that the plan names may be others' too: who named it knows."""
    if folder is None:
        return own_folder(user_caches(), ELSEWHERE)
    files.make_private_folder(folder.absolute())
    return folder.absolute()


def _whole(target: Path, key: str, say: Say) -> Cached | None:
    """The cache, if there is one that is whole."""
    if not os.path.lexists(target):
        return None
    check_own(target, "name another folder for the cache")
    try:
        cached = Cached(target)
    except FileNotFoundError:
        say(f"{target} has no manifest: it is built anew")
    except Damaged as error:
        say(f"{error}: the cache is built anew")
    else:
        if cached.key == key:
            return cached
        say(f"{target} is a cache of something else: it is built anew")
    return None


def _say_bad(cached: Cached, say: Say) -> None:
    if cached.bad:
        say(
            f"{cached.bad} of {len(cached)} samples could not be read when the cache was built, and it keeps why; when "
            f"they can be read again, remove {cached.folder}"
        )


def _build(
    dataset: Any, base: Path, key: str, progress: Progress, say: Say, rows: np.ndarray | None, on_bad: OnBad
) -> None:
    about = _about(dataset)
    with undisturbed():
        reader = SteadyReader(dataset)
        estimate = reader.prove_spread(rows, on_bad)
        _check_space(estimate, base)
        say(
            f"building a cache of {len(dataset)} samples of {about} in {base / key}: "
            f"about {byte_size(estimate.bytes)} and {estimate.seconds / readers(dataset):.0f} s"
        )
        building = base / f".{key}.{secrets.token_hex(4)}.tmp"
        files.make_private_folder(building)
        try:
            writer = Writer(building, key)
            try:
                _write(reader, writer, progress, on_bad)
                writer.finish(about)
            finally:
                writer.abandon()
            files.remove_folder(base / key)  # a damaged one, or none; half removed it is as damaged as before
            files.rename_folder(building, base / key)
        except BaseException:
            with suppress(StorageFailed):  # the first failure is the one to tell; the next start tries again
                files.remove_folder(building)
            raise
    _name_others(base, key, about, say)


def _write(reader: SteadyReader, writer: Writer, progress: Progress, on_bad: OnBad) -> None:
    count = len(reader.dataset)
    every = max(1, count // 1000)
    for index, found in enumerate(packed_in_order(reader)):
        try:
            if isinstance(found, Unreadable):
                on_bad(found)
                writer.add_bad(found.kept())
            else:
                writer.add(found)
        except Different as error:
            what = f"sample {index} has another form than sample 0: {error}"
            raise DataFailed(what, fix="let all samples be made of the same parts") from None
        if (index + 1) % every == 0 or index + 1 == count:
            progress(index + 1, count)


def _check_space(estimate: Estimate, base: Path) -> None:
    free = shutil.disk_usage(base).free
    if estimate.bytes > free:
        what = f"the cache would take about {byte_size(estimate.bytes)}, and {byte_size(free)} are free"
        raise StorageFailed(what, where=str(base), fix="free space, name a folder on another disk, or do without it")


def _remove_leftovers(base: Path, say: Say, but_of: str = "") -> None:
    """Remove what dead builders left. Live ones hold the lock of their key."""
    keys = {match[1] for name in os.listdir(base) if (match := _LEFTOVER.fullmatch(name))} - {but_of}
    for key in sorted(keys):
        try:
            with locked(base / f".{key}.lock", None) as held:
                if held:
                    _remove_own_leftovers(base, key)
        except StorageFailed as error:
            say(f"what a killed run left could not be removed: {error}")


def _remove_own_leftovers(base: Path, key: str) -> None:
    for name in os.listdir(base):
        match = _LEFTOVER.fullmatch(name)
        if match and match[1] == key:
            files.remove_folder(base / name)


def _name_others(base: Path, key: str, about: str, say: Say) -> None:
    """Say which other caches of the same data set lie there: made before its files or its code changed."""
    others, size = list[Path](), 0
    for folder in sorted(base.iterdir()):
        if folder.name == key or not _KEY.fullmatch(folder.name):
            continue
        try:
            manifest = read_manifest(folder)
        except (Damaged, FileNotFoundError):
            continue
        if manifest.about == about:
            others.append(folder)
            size += manifest.data_bytes
    if others:
        listed = ", ".join(map(str, others[:3])) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        say(f"other caches of {about} take {byte_size(size)}; remove those that no run uses: {listed}")


def _about(dataset: Any) -> str:
    """The data set in words that stay the same when its files change."""
    kind = type(dataset)
    inner = getattr(dataset, "dataset", None)
    within = f" of {_about(inner)}" if inner is not None and not isinstance(inner, str) else ""
    paths = [repr(str(value)) for value in getattr(dataset, "__dict__", {}).values() if isinstance(value, str | Path)]
    return f"{kind.__module__}.{kind.__qualname__}" + (f"({', '.join(paths)})" if paths else "") + within


def _silent(_: str) -> None:
    pass


def _no_progress(_: int, __: int) -> None:
    pass
