"""A command as several processes of this machine: `--nproc N`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from hasten.cli.application import RunEnded
from hasten.errors import Hang, Misconfigured
from hasten.facts.ranks import LAUNCHER, launched
from hasten.stop_signals import exit_code

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
    """Run this command again as so many ranks. Raises typer.Exit with the code of the rank that ended the run, which
    printed why, or of the signal that asked this process to end; Hang where a signal ended one rank alone."""
    from hasten.parallel.launch.local_launch import Failed, Killed, Stopped, launch

    ended = launch([sys.executable, "-P", "-m", "hasten", *sys.argv[1:]], processes)
    match ended:
        case Killed():
            what = f"was ended by {ended.signal}, so the other ranks were ended too"
            raise Hang(
                what,
                where=f"rank {ended.rank}",
                fix="check the kernel's log (dmesg) for lack of memory",
            )
        case Failed():
            raise typer.Exit(ended.code)
        case Stopped():
            raise typer.Exit(exit_code(ended.number))
        case None:
            return
