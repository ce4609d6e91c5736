"""Real ranks for tests: gloo processes on this machine, one function run on all of them."""

from __future__ import annotations

import faulthandler
import io
import itertools
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class RankGroup:
    """Ranks that run one function after the other, each in a process group of its own.

    They are copies of the forkserver, which has loaded torch for all of them (conftest.py).
    """

    def __init__(self, size: int, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        pipes = [context.Pipe() for _ in range(size)]
        self._ends = [ours for ours, _ in pipes]
        given = size, str(folder / "store"), dict(os.environ)
        self._processes = [
            context.Process(target=_serve, args=(rank, *given, theirs)) for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self._processes, pipes, strict=True):
            process.start()
            theirs.close()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """function(*arguments) on all ranks; what each returned, by rank. An error on one of them ends all."""
        for end in self._ends:
            end.send((function, arguments))
        found: dict[Connection, Any] = {}
        while len(found) < len(self._ends):
            for end in wait([each for each in self._ends if each not in found]):
                content = _received(end)
                if isinstance(content, str):
                    self.kill()
                    raise AssertionError(content)
                found[end] = torch.load(io.BytesIO(content), weights_only=True)
        return [found[end] for end in self._ends]

    def close(self) -> None:
        for end in self._ends:
            try:
                end.send(None)
            except OSError:  # killed before
                break
        for process in self._processes:
            process.join()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


def on_ranks(size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """function(*arguments) on `size` ranks of their own; what each returned, by rank."""
    group = RankGroup(size, folder)
    try:
        return group.run(function, *arguments)
    finally:
        group.close()


def _received(end: Any) -> bytes | str:
    try:
        return end.recv()
    except EOFError:
        return "a rank ended without a word"


def _serve(rank: int, size: int, store: str, environment: dict[str, str], end: Connection) -> None:
    faulthandler.enable()  # else a rank that crashes says nothing of where
    os.environ.clear()  # of the forkserver: as it was when that began
    os.environ.update(environment)
    torch.set_num_threads(1)
    for number in itertools.count():
        if (task := end.recv()) is None:
            break
        function, arguments = task
        try:
            # Each task has groups of its own: the threads of all that were ever made would keep the processor busy.
            place = dist.FileStore(f"{store}-{number}", size)
            dist.init_process_group("gloo", store=place, rank=rank, world_size=size)
            content = io.BytesIO()
            torch.save(function(*arguments), content)
            dist.barrier()  # no rank may leave while another still talks to it
            dist.destroy_process_group()
            end.send(content.getvalue())
        except BaseException:
            end.send(f"rank {rank}: {traceback.format_exc()}")
            break
    sys.stdout.flush()
    os._exit(0)
