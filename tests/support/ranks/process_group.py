"""Real ranks for tests: gloo processes on this machine, one function run on all of them."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def on_ranks(size: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """function(*arguments) on `size` ranks of one process group; what each returned, by rank.

    They are copies of the forkserver, which has loaded torch for all of them (conftest.py).
    """
    given = (size, str(folder), dict(os.environ), function, arguments)
    multiprocessing.start_processes(_on_one_rank, given, nprocs=size, start_method="forkserver")
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(size)]


def _on_one_rank(
    rank: int,
    size: int,
    folder: str,
    environment: dict[str, str],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    faulthandler.enable()  # else a rank that crashes says nothing of where
    os.environ.clear()  # of the forkserver: as it was when that began
    os.environ.update(environment)
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.save(function(*arguments), f"{folder}/rank-{rank}.pt")
    # No rank may leave while another still talks to it: gloo's threads abort on a closed connection.
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)
