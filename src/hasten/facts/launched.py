"""What a launcher has told this process: which it is of those that train together.

torchrun, and whatever follows its convention, tells it in the environment, before any of them has talked to another;
srun does so by names of its own.
Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hasten.errors import Misconfigured
from hasten.facts.ranks import ALONE, Ranks
from hasten.facts.slurm import as_torchrun

LAUNCHER = "HASTEN_LAUNCHER"  # the variable that tells a rank of `--nproc` which process has started it
COUNTS_STARTS = "TORCHELASTIC_RESTART_COUNT"  # the variable of a launcher that may start all anew
WAIT = "HASTEN_WAIT_SECONDS"  # the variable of a person who knows better than _WAIT_SECONDS
_LONGEST_WAIT = 7 * 24 * 3600.0
_WAIT_SECONDS = 600.0  # to compile, to read a large checkpoint and to build a cache must fit


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """Its place among all, and among those on this machine. restarts: how often the launcher of this machine says that
    it has started all anew; that of another one may say otherwise."""

    all: Ranks = ALONE
    here: Ranks = ALONE
    restarts: int = 0


def launched(environment: Mapping[str, str] = os.environ) -> Launched:
    """One process alone, where no launcher said otherwise. Raises Misconfigured for what cannot be so."""
    environment = {**environment, **as_torchrun(environment)}
    size = _number(environment, "WORLD_SIZE", 1)
    restarts = _number(environment, COUNTS_STARTS, 0)
    if size == 1:
        return Launched(restarts=restarts)
    every = Ranks(_number(environment, "RANK"), size)
    # Where a launcher says nothing of machines, all are taken to be on this one.
    here = Ranks(_number(environment, "LOCAL_RANK", every.rank), _number(environment, "LOCAL_WORLD_SIZE", size))
    if every.rank >= size or here.rank >= here.size or here.size > size:
        told = f"RANK={every.rank}, LOCAL_RANK={here.rank}, LOCAL_WORLD_SIZE={here.size}"
        raise Misconfigured(
            f"does not go with {told}", where=f"WORLD_SIZE={size}", fix="start the processes by torchrun"
        )
    return Launched(all=every, here=here, restarts=restarts)


def wait_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How long a process waits for the others before it takes one of them for hung. Raises Misconfigured."""
    told = environment.get(WAIT, "")
    try:
        seconds = float(told or _WAIT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_WAIT:
        fix = "write a number above 0, of a week at most"
        raise Misconfigured(f"is {told!r}, and no number of seconds", where=WAIT, fix=fix)
    return seconds


def leads(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process talks to people: also where what a launcher said cannot be so, which someone must say."""
    try:
        return launched(environment).all.leads
    except Misconfigured:
        return True


def _number(environment: Mapping[str, str], name: str, absent: int | None = None) -> int:
    told = environment.get(name, "")
    if told.isdecimal():
        return int(told)
    if not told and absent is not None:
        return absent
    said = f"is {told!r}, and no number" if told else "is not set, where WORLD_SIZE is"
    raise Misconfigured(said, where=name, fix="start the processes by torchrun, or with --nproc")
