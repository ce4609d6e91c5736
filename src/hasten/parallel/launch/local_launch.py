"""Several processes of one command on this machine, as ranks of one run, under torch's elastic agent.

The agent starts them, watches them, and ends the others when one fails. What they say to people goes where this
process's own words go. They meet on the loopback interface alone.

Source: https://docs.pytorch.org/docs/stable/elastic/agent.html
"""

from __future__ import annotations

import logging
import os
import signal
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.errors import TERMINATED
from hasten.facts.machine import usable_cores
from hasten.facts.ranks import LAUNCHER
from hasten.parallel.launch.loopback import ADDRESS, INTERFACE, NAME
from hasten.parallel.launch.signal_forwarding import signals_passed_on

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


_SIGNALS = ("SIGQUIT",)  # by which the agent ends its ranks; others it leaves to us


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The rank that ended a run, by its own words, and what it exited with."""

    rank: int
    code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Killed:
    """The rank that a signal ended, and the others with it."""

    rank: int
    signal: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    """This process was asked to end by a signal, and the ranks have done so."""

    number: int


def launch(command: Sequence[str], processes: int) -> Failed | Killed | Stopped | None:
    """Run the command as so many ranks, and wait until all have ended. None where all did what they were asked."""
    # Here, as they ask for signals that not every system has.
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend=NAME,
        rdzv_endpoint=ADDRESS,
        local_addr=ADDRESS,
        max_restarts=0,
        signals_to_handle=",".join(
            each for each in _SIGNALS if signal.getsignal(signal.Signals[each]) != signal.SIG_IGN
        ),
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    os.environ.update(_surroundings(processes, os.environ))
    _say_nothing_twice()
    with signals_passed_on() as asked:
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            return _culprit(error.failures) if asked.number is None else Stopped(number=asked.number)
        except SignalException as stopped:
            return Stopped(number=stopped.sigval)
    return None


def _surroundings(processes: int, present: Mapping[str, str]) -> dict[str, str]:
    """Of the ranks. Each computes with its share of the cores; torch would let each have all of them."""
    threads = present.get("OMP_NUM_THREADS") or str(max(1, usable_cores() // processes))
    loopback = {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE}
    return {"OMP_NUM_THREADS": threads, **loopback, LAUNCHER: str(os.getpid())}


def _say_nothing_twice() -> None:
    """The agent logs what the ranks say themselves, and what is told once it has ended."""
    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _culprit(failures: Mapping[int, ProcessFailure]) -> Failed | Killed:
    """Who is killed cannot say so, and those who lose it fail after it: it comes first. The agent ends whoever is left
    by SIGTERM: they come last."""
    order = {-signal.SIGTERM: 2, TERMINATED: 2}
    rank, failure = min(
        failures.items(), key=lambda each: (order.get(each[1].exitcode, each[1].exitcode >= 0), each[1].timestamp)
    )
    if failure.exitcode < 0:
        return Killed(rank=rank, signal=signal.Signals(-failure.exitcode).name)
    return Failed(rank=rank, code=failure.exitcode)
