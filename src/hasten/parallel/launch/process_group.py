"""The process group of the ranks that a launcher has started, and how they fail as one.

The first rank that fails writes the cause to a store that all can read, before its connections close and the others
fail in turn. So each rank knows which one failed, and why.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from hasten.errors import Hang, HastenError
from hasten.facts.ranks import WAIT, as_torchrun, launched, wait_seconds
from hasten.parallel.collectives import present_ranks
from hasten.parallel.launch.failure_store import Cause, FailureStore, failure_store, named

Value = TypeVar("Value")

_KEEPS_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # set by torchrun
_GROUPS = count()  # process groups that this process has made; all ranks make equally many
_GRACE_AFTER_TIMEOUT, _GRACE_AFTER_LOSS = 5.0, 2.0  # seconds after the first rank that timed out, or lost a connection
_TIMEOUT_MESSAGES = "timed out waiting", "wait timeout", "application timeout"  # gloo's, and the store's
_GLOO, _GLOO_WAITED = "gloo/transport", "application timeout caused pair closure"  # the source of most errors of gloo
_BROKEN = _GLOO, "Connection closed by peer", "Connection reset by peer"


@contextmanager
def joined() -> Iterator[None]:
    """Inside, torch's default process group has all ranks. Does nothing for one process, and where there is a group."""
    if dist.is_initialized() or not launched().all.many:
        yield
        return
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(launched().here.rank % torch.cuda.device_count())
    here, seconds = launched().all, wait_seconds()
    # A launcher that restarts all ranks may keep its store, and this process may make several groups.
    start = launched().restarts if os.environ.get(_KEEPS_STORE) == "True" else 0
    with _missing_ranks_named(seconds):
        dist.init_process_group(
            backend,
            store=PrefixStore(f"hasten/{start}/{next(_GROUPS)}", _store()),
            rank=here.rank,
            world_size=here.size,
            timeout=timedelta(seconds=seconds),
        )
    try:
        yield
    finally:
        dist.destroy_process_group()


@cache
def _store() -> Store:
    """The store of this launcher's processes, as long as this one lives."""
    os.environ.update(as_torchrun(os.environ))  # where torch reads it
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=wait_seconds())))
    return store


@contextmanager
def _missing_ranks_named(seconds: float) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of torch's store, and of gloo
        if not (_is_broken_connection(error) or _is_timeout(error)):
            raise
        where = os.environ.get("MASTER_ADDR", "the rendezvous")
        what = f"not all processes of this run reached {where} in {seconds:g} s, or some left it again"
        fix = f"check the output of the others, that all were started, and that the network connects them; {WAIT} "
        raise Hang(what, fix=f"{fix}sets the limit") from error


@contextmanager
def failing_as_one(
    cause_of: Callable[[BaseException], Cause], *, known: tuple[type[BaseException], ...] = (), ends: bool = False
) -> Iterator[None]:
    """Report an error that ends this rank to all others. Raises RankFailed where another rank failed before, and Hang
    where one ended without a report.

    cause_of: what to report of an error. known: errors that were reported already. ends: this process is about to print
    the error and to end.
    """
    ranks = present_ranks()
    if not ranks.many:
        yield
        return
    store = failure_store(ranks)
    try:
        yield
        dist.barrier()  # no rank may leave while another still communicates with it, or may still fail
    except known:
        raise
    except KeyboardInterrupt as interrupt:  # each rank gets its own
        with _sigterm_ignored(ends):
            store.report(cause_of(interrupt))
        raise
    except BaseException as error:
        with _sigterm_ignored(ends):
            end = _end(error, store, cause_of)
        if end is None:
            raise
        raise end from error


def _end(error: BaseException, store: FailureStore, cause_of: Callable[[BaseException], Cause]) -> HastenError | None:
    """The error to end this rank with, after reporting it; None for the error itself."""
    if _is_timeout(error):
        return _timed_out(store)
    if _is_broken_connection(error):
        return _lost_connection(store)
    return store.report(cause_of(error))


def _timed_out(store: FailureStore) -> HastenError:
    silent, seconds = store.silent(_GRACE_AFTER_TIMEOUT), wait_seconds()
    who = named(silent) if silent else "an unknown rank: all of them wait"
    store.report(Cause(code=Hang.exit_code, what=f"waited {seconds:g} s for {who}"))
    fix = f"check its data, its loss and its machine; {WAIT} sets the limit"
    return Hang(f"the other ranks waited {seconds:g} s for it", where=who, fix=fix)


def _lost_connection(store: FailureStore) -> HastenError:
    """On one machine the launcher reports which rank was killed, and ends the others at once."""
    if (first := store.reported()) is not None:
        return first
    alone = launched().all.size == launched().here.size
    silent = () if alone else store.silent(_GRACE_AFTER_LOSS)
    first = store.report(Cause(code=Hang.exit_code, what=f"lost {named(silent) if silent else 'another rank'}"))
    if silent:
        what = "its connection broke without an error report: it was killed, or its machine failed"
        fix = "check its launcher, its kernel's log (dmesg) and the network"
        return Hang(what, where=named(silent), fix=fix)
    if first is not None:
        return first
    what = "the connection to another process of this run broke; that process may have been killed"
    return Hang(what, where=f"rank {present_ranks().rank}", fix="check the output of the other ranks")


@contextmanager
def _sigterm_ignored(for_good: bool) -> Iterator[None]:
    """A launcher sends SIGTERM to all ranks as soon as one has ended, and this one has yet to report."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        if not for_good:
            signal.signal(signal.SIGTERM, before)


def on_any(flag: bool) -> bool:
    """Whether this is true on any rank. Waits for all of them."""
    return bool(_reduced(torch.tensor(int(flag)), dist.ReduceOp.MAX))


def least(value: float) -> float:
    """The smallest value of all ranks. Waits for all of them."""
    return float(_reduced(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.MIN))


def _reduced(value: torch.Tensor, operation: Any) -> torch.Tensor:
    if present_ranks().many:
        dist.all_reduce(value, operation)
    return value


def from_the_leader(make: Callable[[], Value]) -> Value:
    """What `make` returns on the first rank, on all of them; anything that pickles. Waits for the first rank."""
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


def _is_timeout(error: BaseException) -> bool:
    message = str(error).lower()
    of_gloo = isinstance(error, RuntimeError) and (_GLOO in message or message.startswith(_GLOO_WAITED))
    return (of_gloo or isinstance(error, dist.DistError)) and any(sign in message for sign in _TIMEOUT_MESSAGES)
