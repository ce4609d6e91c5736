"""Data sets that harm the process that reads them, and what is left of their workers afterwards.

They stand in a module of their own, so that a worker which starts as a new Python finds them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import torch
from torch.utils.data import get_worker_info

from hasten.data.loading.batch_feed import Feed
from hasten.data.loading.batch_readers import Request, reader_of
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.job_data import source_of
from hasten.data.workers.hang_limit import Patience

SHARED_MEMORY = Path("/dev/shm")


class Harmful:
    """Numbers; reading the bad one does the harm, in a worker alone."""

    def __init__(self, harm: str, *, count: int = 24, bad: int = 9) -> None:
        self.harm, self.count, self.bad = harm, count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index == self.bad and get_worker_info() is not None:
            HARMS[self.harm]()
        return index


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    os._exit(3)  # sys.exit() would be a failure of the sample


def leave_without_a_word() -> None:
    os._exit(0)


def circle() -> None:
    while True:
        pass


HARMS = {
    "kill": kill,
    "stop": stop,
    "exit": leave,
    "leave": leave_without_a_word,
    "circle": circle,
}


class OddSamples:
    """Samples that hold something else than numbers."""

    def __init__(self, sample: Any) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.sample


class Lambdas:
    """Each sample holds a function without a name, which no pickle takes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return {"number": index, "function": lambda: index}


def as_list(samples: list[Any]) -> list[Any]:
    return samples


class Large:
    """A sample of one MiB."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 << 20,), index, dtype=torch.uint8)


def feed_of(
    data: Any, options: LoaderOptions, *, patience: Patience | None = None, collate: Any = None, worker_init: Any = None
) -> Feed:
    source = source_of(data, field="train", batch_size=4, collate=collate)
    return Feed(reader_of(source, 7), source, options, patience=patience)


def requests(count: int, size: int = 4) -> list[Request]:
    return [Request(0, np.arange(start, start + size)) for start in range(0, count, size)]


def read(feed: Feed, count: int) -> list[Any]:
    return list(feed.answers(requests(count)))


def worker_pids() -> set[int]:
    """Processes that this one started and that still are there, but for the helpers that Python itself keeps."""
    found = set[int]()
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if "resource_tracker" not in line and "forkserver" not in line:
            found.add(child.pid)
    return found


def segments(makers: set[int] | None = None) -> set[str]:
    """Of torch in shared memory; only those that `makers` made, where given: a segment's name tells its maker.

    Tests run in several processes at a time, and some kill a process that makes one."""
    found = {path.name for path in SHARED_MEMORY.glob("torch_*")} if SHARED_MEMORY.is_dir() else set()
    return {name for name in found if makers is None or int(name.split("_")[1]) in makers}


def open_files() -> int:
    return psutil.Process().num_fds()


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """No process that is started within, and nothing that it put into shared memory, is there at the end."""
    before, started, start = worker_pids(), {os.getpid()}, BaseProcess.start
    own = segments(started)

    def start_noted(process: BaseProcess) -> None:
        start(process)
        started.add(process.pid or 0)

    with patch.object(BaseProcess, "start", start_noted):
        yield
    assert worker_pids() == before
    until = time.monotonic() + 2  # that of a process which has just ended is there for an instant
    while segments(started) - own and time.monotonic() < until:
        pass
    assert segments(started) - own == set()
