"""A script that trains in several processes of this machine: rank 0 tunes it, and its trials start ranks themselves."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from hasten.cli.nproc import launches
from hasten.errors import Misconfigured
from hasten.facts.ranks import environment_of, launched

RANKS = "Run the script as N processes, as torchrun --nproc-per-node N does."
ScriptProcesses = Annotated[int | None, typer.Option("--nproc", metavar="N", min=1, help=RANKS)]
_BY_ACCELERATE = "ACCELERATE_MIXED_PRECISION"  # set by accelerate launch


def leads_script(processes: int | None) -> bool:
    """Whether this process is rank 0, which it becomes by --nproc; another rank has nothing to do. Raises
    Misconfigured."""
    if launches(processes):
        assert processes is not None
        os.environ.update(environment_of(0, processes, port=0))  # each trial has a port of its own
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun sets it
    ranks = launched()
    if not ranks.all.leads:
        return False
    if ranks.all.size != ranks.here.size:
        fix = "start all of its processes on this machine, and use the plan on all machines"
        raise Misconfigured("was started on several machines, and a script is tuned on one", fix=fix)
    if ranks.all.many and "RANK" not in os.environ:
        raise Misconfigured("was started by srun", fix="start it as srun -n 1 torchrun --nproc-per-node N")
    return True


def _launcher() -> list[str]:
    """Its words; none where Python itself has started this process."""
    ranks = launched().all
    if _BY_ACCELERATE in os.environ:
        return ["accelerate", "launch", "--num_processes", str(ranks.size)]
    return ["torchrun", "--nproc-per-node", str(ranks.size)] if ranks.many else []


def python_words() -> list[str]:
    """That run a script, which stands behind them."""
    return _launcher() or ["python"]


def hasten_words(command: str) -> list[str]:
    words = _launcher()
    return [*words, *(["-m"] if words else []), "hasten", command]
