"""A command as several processes of this machine: `--nproc N`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from hasten.cli.application import RunEnded
from hasten.errors import Misconfigured
from hasten.facts.ranks import LAUNCHER, launched

Processes = Annotated[
    int | None,
    typer.Option(
        "--nproc", metavar="N", min=1, help="Train with N processes on this machine; for several machines: torchrun."
    ),
]


def launches(processes: int | None) -> bool:
    """Whether this process starts the ranks and is none of them. Raises Misconfigured."""
    here = launched().all
    if here.many and processes not in {None, here.size}:
        what = f"asks for {processes} processes, but a launcher has started {here.size}"
        raise Misconfigured(what, where="--nproc", fix="remove --nproc: the launcher sets the number of processes")
    return not here.many and processes is not None and processes > 1


@contextmanager
def as_one_of_the_ranks() -> Iterator[None]:
    """Inside, this process belongs to the process group of the ranks that were launched with it, if there are any. One
    that `--nproc` has started dies with the process that started it."""
    if not launched().all.many:
        yield
        return
    from hasten.parallel.launch.process_group import failing_as_one, joined
    from hasten.training.failures.as_failure import cause_of
    from hasten.training.saving.stop_request import failures_end_the_process
    from hasten.tuning.trials.process_tree import die_with

    launcher = os.environ.get(LAUNCHER)
    if launcher is not None:
        die_with(int(launcher))
    with failures_end_the_process(), joined(), failing_as_one(cause_of, known=(RunEnded,), ends=True):
        yield


def run_as_ranks(processes: int) -> None:
    """Run this command again as so many ranks. Raises typer.Exit where they fail, with their exit code; and Hang."""
    from hasten.parallel.launch.local_launch import launch

    code = launch([sys.executable, "-P", "-m", "hasten", *sys.argv[1:]], processes)
    if code:
        raise typer.Exit(code)
