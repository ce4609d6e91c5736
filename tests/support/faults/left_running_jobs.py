"""Jobs that leave something running when they have been trained, and the program that trains one of each.

Each is trained by the `hasten` command, or by a call of hasten.train, in a copy of one process that has loaded torch.
The copy ends as any Python process does: with all that Python does at its end.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import socketserver
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # here, so that no copy has to load it, as every optimizer does
import torchmetrics  # noqa: F401
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import hasten
from hasten import entry  # noqa: F401
from support import small_job

LIMIT_SECONDS = 150.0  # after which a process is taken for one that never ends
FORK = multiprocessing.get_context("fork")
_KEPT: list[Any] = []  # what the job made lives as long as the process


def job(**changes: Any) -> hasten.Job:
    return small_job(valid=small_job().train, **changes)


def _after_the_first(leave: Callable[[], Any]) -> hasten.Job:
    """A loss that begins something in its first call, and lets it go on."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if not _KEPT:
            _KEPT.append(leave())
        return functional.cross_entropy(model(batch[0]), batch[1])

    return job(loss=loss)


class Rows(Dataset[Any]):
    def __init__(self, pooled: bool = False) -> None:
        (self.rows, self.labels), self.pooled = small_job().train, pooled

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if self.pooled and not _KEPT:
            _KEPT.append(FORK.Pool(1))
        return self.rows[index], self.labels[index]


def persistent_workers(**changes: Any) -> hasten.Job:
    loader = DataLoader(Rows(), batch_size=8, num_workers=1, persistent_workers=True)
    return job(train=loader, batch_size=None, **changes)


def planned_workers() -> hasten.Job:
    return job(train=Rows())


def _fail() -> None:
    raise ValueError("a mistake of the job's own")


def mistaken_with_workers() -> hasten.Job:
    calls: list[int] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        return _fail() if len(calls) == 3 else functional.cross_entropy(model(batch[0]), batch[1])

    return persistent_workers(loss=loss)


def pool_of_a_data_set() -> hasten.Job:
    return job(train=Rows(pooled=True))


def process_executor() -> hasten.Job:
    def leave() -> ProcessPoolExecutor:
        executor = ProcessPoolExecutor(1, mp_context=FORK)
        executor.submit(os.getpid).result()
        return executor

    return _after_the_first(leave)


def _fork() -> int:
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    return child


def fork() -> hasten.Job:
    return _after_the_first(_fork)


def _thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def thread_that_ends() -> hasten.Job:
    """After the run, as soon as Python has nothing else to do."""
    return _after_the_first(lambda: _thread(threading.main_thread().join))


def _serve() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        server.serve_forever()


def server() -> hasten.Job:
    def leave() -> Any:
        process = FORK.Process(target=_serve, daemon=True)
        process.start()
        return process

    return _after_the_first(leave)


def endless_thread() -> hasten.Job:
    """Keeps Python from ending, as any thread does that is no daemon, until somebody asks the process to end."""

    def work() -> None:
        threading.main_thread().join()
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait()

    return _after_the_first(lambda: _thread(work))


PLAN = """
[[choice]]
technique = "loader_workers"
value = 1

[[choice]]
technique = "persistent_workers"
value = true
"""


def trained(name: str, way: str) -> None:
    """way: "command", "plan" for the command with a plan, "folder" for a call."""
    if way == "folder":
        hasten.train(globals()[name](), run_dir="run")
        return
    if way == "plan":
        Path("plan.toml").write_text(PLAN)
    from hasten.__main__ import main

    plan = ["--plan", "plan.toml"] if way == "plan" else []
    sys.argv = ["hasten", "train", f"{__file__}:{name}", "--run-dir", "run", *plan]
    main()


def outcome(child: int, place: Path) -> dict[str, Any]:
    """How the copy ended, and what it printed; code: None for one that does not end."""
    ends = os.pidfd_open(child)
    ended = bool(select.select([ends], [], [], LIMIT_SECONDS)[0])
    os.close(ends)
    if not ended:
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has left running
    return {"code": code if ended else None, "told": (place / "told").read_text()}


def begin(name: str, way: str, place: Path) -> int:
    """A copy of this process that goes on, as 0, where this function returns."""
    place.mkdir()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(place)
        with open("told", "w") as told:
            for stream in (1, 2):
                os.dup2(told.fileno(), stream)
    return child


def train_what_is_asked_for() -> None:
    """Read a name and a way a line, and answer with an outcome a line. Returns in the copies as well."""
    for line in iter(sys.stdin.readline, ""):
        name, way = line.split()
        place = Path(f"{name} {way}").absolute()
        if (child := begin(name, way, place)) == 0:
            trained(name, way)
            return
        sys.stdout.write(json.dumps(outcome(child, place)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    train_what_is_asked_for()
