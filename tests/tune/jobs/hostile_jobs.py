"""Jobs that do to their arm whatever a job can do by mistake, and some that do it on purpose.

Where one starts processes it writes their numbers into the file HASTEN_TEST_JOURNAL. Whatever is endless here ends by
itself where nobody ends it: no test endangers the machine that it runs on.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import hasten

Loss = Callable[[nn.Module, Any], torch.Tensor]
KEPT: list[Any] = []  # what a job holds on to
CALLS: list[None] = []

print("printed where the job is imported")  # noqa: T201


def plain_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def job(loss: Loss = plain_loss, width: int = 6, **changes: Any) -> hasten.Job:
    generator = torch.Generator().manual_seed(1)
    fields: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(6, width), nn.Linear(width, 3)),
        "loss": loss,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "train": (torch.randn(400, 6, generator=generator), torch.randint(0, 3, (400,), generator=generator)),
        "batch_size": 8,
        "epochs": 2,
    }
    return hasten.Job(**(fields | changes))


def __getattr__(name: str) -> Callable[[], hasten.Job]:
    """job_leaks, job_escapes, …: the job that does what the function of that name does before each loss."""
    doing = globals().get(name.removeprefix("job_"))
    if not name.startswith("job_") or doing is None:
        raise AttributeError(name)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        CALLS.append(None)
        doing()
        return plain_loss(model, batch)

    return lambda: job(loss)


def note(*processes: int) -> None:
    with Path(os.environ["HASTEN_TEST_JOURNAL"]).open("a") as journal:
        journal.write("".join(f"{process} " for process in processes))


def stay() -> None:
    """As long as a test may take."""
    signal.setitimer(signal.ITIMER_REAL, 170)
    while True:
        signal.pause()


# What ends it.


def aborts_in_the_third_window() -> None:
    if len(CALLS) > 4:
        os.abort()


def exits() -> None:
    sys.exit("enough")


def interrupts_itself() -> None:
    raise KeyboardInterrupt


def finds_the_disk_full() -> None:
    raise ValueError("could not be saved") from OSError(28, "No space left on device")


def not_finite_from_the_second_step() -> hasten.Job:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        CALLS.append(None)
        return plain_loss(model, batch) * (1 if len(CALLS) == 1 else torch.nan)

    return job(loss)


class Short(Dataset[Any]):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        return [torch.zeros(6), torch.tensor(0)][: 2 if index < 4 else index // 0]


def length_lies() -> hasten.Job:
    return job(train=Short())


# What hangs.


def hangs_while_built() -> hasten.Job:
    stay()
    raise AssertionError


def hangs_without_letting_go_of_the_interpreter() -> None:
    re.match("(a|a)*$", "a" * 60 + "b")


def hangs_and_is_deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
        signal.signal(number, signal.SIG_IGN)
    stay()


def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


# What takes too much.


def leaks() -> None:
    if len(KEPT) < 40:
        KEPT.append(torch.ones(1 << 23))  # 32 MiB


def leaks_in_another_process() -> None:
    if not CALLS[1:] and os.fork() == 0:
        note(os.getpid())
        KEPT.append(torch.ones(1 << 28))
        stay()


def shares_what_it_holds() -> None:
    """Six processes that hold the same pages."""
    if not CALLS[1:]:
        KEPT.append(torch.ones(1 << 26))  # 256 MiB
        for _ in range(5):
            if os.fork() == 0:
                stay()


def fills_its_folder() -> None:
    with Path(os.environ["TMPDIR"], str(len(CALLS) % 64)).open("wb") as file:
        file.write(bytes(1 << 20))


def prints_a_gigabyte(parts: int = 1100) -> None:
    if not CALLS[1:]:
        for _ in range(parts):
            os.write(1, b"all work and no play " * 50_000)


def prints_much() -> None:
    prints_a_gigabyte(50)


# What would stay behind.


def forks_what_forks(depth: int = 3) -> None:
    if len(CALLS) > 1:
        return
    for _ in range(3):
        if os.fork() == 0:
            note(os.getpid())
            if depth > 1:
                forks_what_forks(depth - 1)
            stay()


def twins() -> None:
    if not CALLS[1:]:
        note(os.fork() or os.getpid())


def twins_while_built() -> hasten.Job:
    note(os.fork() or os.getpid())
    return job()


def dies_before_its_child() -> None:
    """Which holds open all that its parent has held open."""
    child = os.fork()
    if child == 0:
        stay()
    note(child)
    os.abort()


def leaves_a_thread() -> None:
    threading.Thread(target=stay_busy, daemon=False).start()


def stay_busy() -> None:
    threading.Event().wait(170)


# What it does to its own place.


def deletes_its_folder() -> None:
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def changes_its_place() -> None:
    os.chdir(tempfile.mkdtemp())
    shutil.rmtree(os.getcwd())
    os.environ.clear()
    os.environ["HASTEN_TEST_JOURNAL"] = "/nowhere"
    sys.path.clear()
    torch.manual_seed(4)
    torch.use_deterministic_algorithms(True)


def handles_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, lambda number, frame: KEPT.append(number))


# What is only strange.


class Uncopyable(nn.Linear):
    def __deepcopy__(self, memo: dict[int, Any]) -> Uncopyable:
        raise TypeError("cannot be copied")


def cannot_be_copied() -> hasten.Job:
    return job(model=lambda: copy.copy(Uncopyable(6, 3)))


def different_each_time() -> hasten.Job:
    return job(width=1 + os.urandom(1)[0])
