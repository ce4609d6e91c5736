"""Several processes of one command on this machine, as ranks of one run, under torch's elastic agent.

The agent starts them, watches them, and ends the others when one fails. Their output goes where this process's goes.
They communicate on the loopback interface only.

Source: https://docs.pytorch.org/docs/stable/elastic/agent.html
"""

from __future__ import annotations

import logging
import os
import signal
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hasten.errors import TERMINATED, Hang
from hasten.facts.machine import usable_cores
from hasten.facts.ranks import LAUNCHER
from hasten.parallel.launch.loopback import ADDRESS, INTERFACE, NAME
from hasten.parallel.launch.signal_forwarding import signals_passed_on
from hasten.stop_signals import exit_code

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


def launch(command: Sequence[str], processes: int) -> int:
    """Run the command as so many ranks, and wait until all have ended. The exit code of the rank that ended the run,
    which printed why, or of the signal that asked this process to end. Raises Hang where a signal ended one rank."""
    # Imported here: they use signals that not every system has.
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
        # By SIGQUIT the agent ends its ranks; the other signals are handled here.
        signals_to_handle="SIGQUIT" if signal.getsignal(signal.SIGQUIT) != signal.SIG_IGN else "",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )
    os.environ.update(_rank_environment(processes, os.environ))
    _silence_agent()
    with signals_passed_on() as forwarded:
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            return _code_of(error.failures) if forwarded.number is None else exit_code(forwarded.number)
        except SignalException as stopped:
            return exit_code(stopped.sigval)
    return 0


def _rank_environment(processes: int, present: Mapping[str, str]) -> dict[str, str]:
    """Each rank uses its share of the cores; by default torch would use all of them in each."""
    threads = present.get("OMP_NUM_THREADS") or str(max(1, usable_cores() // processes))
    loopback = {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE}
    return {"OMP_NUM_THREADS": threads, **loopback, LAUNCHER: str(os.getpid())}


def _silence_agent() -> None:
    """It would log what the ranks print themselves."""
    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _code_of(failures: Mapping[int, ProcessFailure]) -> int:
    """A killed rank cannot report, and the others fail after it: it comes first. Ranks that the agent ended by SIGTERM
    come last."""
    order = {-signal.SIGTERM: 2, TERMINATED: 2}
    rank, failure = min(
        failures.items(), key=lambda each: (order.get(each[1].exitcode, each[1].exitcode >= 0), each[1].timestamp)
    )
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        what = f"was ended by {name}, so the other ranks were ended too"
        raise Hang(what, where=f"rank {rank}", fix="check the kernel's log (dmesg) for lack of memory")
    return failure.exitcode
