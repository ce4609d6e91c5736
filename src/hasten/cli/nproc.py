"""A command as several processes of this machine: `--nproc N`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from hasten.cli.application import Ended
from hasten.errors import Hang, Misconfigured
from hasten.facts.ranks import LAUNCHER, launched
from hasten.stop_signals import exit_code

Processes = Annotated[
    int | None,
    typer.Option(
        "--nproc", metavar="N", min=1, help="So many processes of this machine train as one; elsewhere: torchrun."
    ),
]


def launches(processes: int | None) -> bool:
    """Whether this process is to start the ranks, and not one of them. Raises Misconfigured."""
    here = launched().all
    if here.many and processes not in {None, here.size}:
        what = f"asks for {processes} processes, and a launcher has started {here.size}"
        raise Misconfigured(what, where="--nproc", fix="leave it out: the launcher's number counts")
    return not here.many and processes is not None and processes > 1


@contextmanager
def ranks_met() -> Iterator[None]:
    """Inside, this process has met the others that were launched with it, if there are any. One that `--nproc` has
    started is killed when whoever started it is."""
    if not launched().all.many:
        yield
        return
    from hasten.parallel.launch.process_group import failing_as_one, joined
    from hasten.training.failures.as_failure import cause_of
    from hasten.training.stop_request import failures_end_the_process
    from hasten.tune.trials.process_tree import die_with

    launcher = os.environ.get(LAUNCHER)
    if launcher is not None:
        die_with(int(launcher))
    with failures_end_the_process(), joined(), failing_as_one(cause_of, known=(Ended,), ends=True):
        yield


def run_as_ranks(processes: int) -> None:
    """This very command, as so many ranks. Raises typer.Exit with the code of the rank that ended the run, which has
    said why, or of the signal by which this process was asked to end; Hang where a signal ended a rank alone."""
    from hasten.parallel.launch.local_launch import Failed, Killed, Stopped, launch

    ended = launch([sys.executable, "-P", "-m", "hasten", *sys.argv[1:]], processes)
    match ended:
        case Killed():
            what = f"was ended by {ended.signal}, and the others were with it"
            raise Hang(what, where=f"rank {ended.rank}", fix="see what ended it: the kernel's log tells of full memory")
        case Failed():
            raise typer.Exit(ended.code)
        case Stopped():
            raise typer.Exit(exit_code(ended.number))
        case None:
            return
