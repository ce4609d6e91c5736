"""The processes that a launcher has started meet, part again, and fail as one.

Whoever fails first says so where all of them can read it, before its connections close and the others fail in turn: so
each knows whose failure it is.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store  # where torch.distributed has them from
from torch.distributed.rendezvous import rendezvous

from hasten.errors import Hang, RankFailed
from hasten.facts.launched import WAIT, launched, wait_seconds
from hasten.facts.ranks import Ranks
from hasten.facts.slurm import as_torchrun
from hasten.parallel.replicate import present_ranks
from hasten.parallel.round import round_of

Value = TypeVar("Value")

_FAILED, _WAITS = "failed", "waits/"
_MEETINGS = count()  # of this process; all of a launcher's meet equally often
_ASK = timedelta(seconds=5)
_LAST_TO_SAY = 5.0  # seconds, between the first and the last of those who wait too long
_TOO_LONG = "timed out waiting", "wait timeout", "application timeout"  # gloo's words, and the store's
_GLOO = "gloo/transport"  # a source of gloo, which its errors begin with, unless a backward pass met them
_OF_GLOO = _GLOO, "pair closure"
_BROKEN = _GLOO, "Connection closed by peer", "Connection reset by peer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Why a rank failed: the exit code, and words."""

    code: int
    what: str


@contextmanager
def joined() -> Iterator[None]:
    """Inside, torch's default process group has all ranks. Nothing happens in a process that is alone, or where there
    is a group already."""
    if dist.is_initialized() or not launched().all.many:
        yield
        return
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(launched().here.rank % torch.cuda.device_count())
    here, seconds = launched().all, wait_seconds()
    meeting = f"hasten/{next(_MEETINGS)}"  # what an earlier one left would be read as this one's
    store = PrefixStore(f"{meeting}/{round_of(PrefixStore(meeting, _store()), here, seconds)}", _store())
    dist.init_process_group(
        backend, store=store, rank=here.rank, world_size=here.size, timeout=timedelta(seconds=seconds)
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


@cache
def _store() -> Store:
    """Where the processes of this launcher meet, as long as this one lives."""
    os.environ.update(as_torchrun(os.environ))  # where torch looks
    store, _, _ = next(rendezvous("env://"))
    return store


@contextmanager
def failing_as_one(
    cause_of: Callable[[BaseException], Cause], *, known: tuple[type[BaseException], ...] = (), ends: bool = False
) -> Iterator[None]:
    """What ends this rank is told to all others. Raises RankFailed where another one failed before, and Hang where one
    is gone without a word.

    cause_of: says of an error what the others are to know. known: what they have been told of already. ends: this
    process is about to end by the error, with words of its own.
    """
    ranks = present_ranks()
    if not ranks.many:
        yield
        return
    try:
        yield
        dist.barrier()  # no rank may leave while another still talks to it, or may still fail
    except known:
        raise
    except KeyboardInterrupt as interrupt:  # of each rank its own
        with _undisturbed(ends):
            _first_failure(ranks, cause_of(interrupt))
        raise
    except BaseException as error:
        lost, missing = _is_broken_connection(error), ""
        if _is_too_long_a_wait(error):
            missing = _missing(ranks)
            cause = Cause(code=Hang.exit_code, what=f"waited {wait_seconds():g} s for {missing}")
        else:
            cause = Cause(code=Hang.exit_code, what="lost another rank") if lost else cause_of(error)
        with _undisturbed(ends):
            first = _first_failure(ranks, cause)
        if missing:
            what = f"the others have waited {wait_seconds():g} s for it, and it did not come"
            fix = f"see what it does, in its data, its loss or its machine; {WAIT} says how long is too long"
            raise Hang(what, where=missing, fix=fix) from error
        if first is not None:
            raise first from error
        if lost:
            what = "the connection to another process of this run broke, which may have been killed"
            raise Hang(what, where=f"rank {ranks.rank}", fix="see what the others say, and what killed one") from error
        raise


@contextmanager
def _undisturbed(for_good: bool) -> Iterator[None]:
    """By a launcher, which ends all as soon as one is gone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        if not for_good:
            signal.signal(signal.SIGTERM, before)


def on_any(wish: bool) -> bool:
    """Whether any rank wants this. Waits for all of them."""
    if not present_ranks().many:
        return wish
    said = torch.tensor(int(wish))
    dist.all_reduce(said, dist.ReduceOp.MAX)
    return bool(said)


def from_the_leader(make: Callable[[], Value]) -> Value:
    """What `make` gives on the first rank, on all of them; of anything that can be pickled. Waits for the leader."""
    ranks = present_ranks()
    if not ranks.many:
        return make()
    found: list[Any] = [make() if ranks.leads else None]
    dist.broadcast_object_list(found, src=0)
    return found[0]


def _is_broken_connection(error: BaseException) -> bool:
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _BROKEN)


def _is_too_long_a_wait(error: BaseException) -> bool:
    told = str(error).lower()
    of_torch = isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(sign in told for sign in _OF_GLOO)
    )
    return of_torch and any(sign in told for sign in _TOO_LONG)


def _missing(ranks: Ranks) -> str:
    """Who has not said that it waits as well, in words."""
    store = _patient_for(_ASK)
    store.set(f"{_WAITS}{ranks.rank}", "")
    until, names = time.monotonic() + _LAST_TO_SAY, {f"{_WAITS}{rank}": rank for rank in range(ranks.size)}
    while (silent := [rank for name, rank in names.items() if not store.check([name])]) and time.monotonic() < until:
        time.sleep(0.1)
    if not silent:
        return "a rank that is not known: all of them wait"
    return f"rank {silent[0]}" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))}"


def _first_failure(ranks: Ranks, cause: Cause) -> RankFailed | None:
    """None where it is this rank's own, and where nobody can be asked any more."""
    mine = json.dumps({"rank": ranks.rank, **asdict(cause)})
    try:
        first = json.loads(_asked_shortly(mine))
    except (RuntimeError, ValueError):  # the store is gone, and with it whoever launched this; or the group
        return None
    if first["rank"] == ranks.rank:
        return None
    return RankFailed(first["what"], where=f"rank {first['rank']}", code=first["code"])


def _asked_shortly(mine: str) -> bytes:
    """What the first said that failed, which may be this."""
    return _patient_for(_ASK).compare_set(_FAILED, "", mine)


def _patient_for(time_: timedelta) -> Any:
    """The store that all meet at, with a patience of its own."""
    present: Any = dist.distributed_c10d._get_default_store()
    store = present.clone()
    store.set_timeout(time_)
    return store
