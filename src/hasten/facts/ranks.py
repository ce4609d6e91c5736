"""Which rank this process is, of how many: read from the environment that torchrun or srun sets.

torchrun, and launchers that follow its convention, set RANK, WORLD_SIZE and others. srun sets variables of its own,
which are translated. A batch script that does not use srun is a single process, whatever resources it has.

Sources: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables,
https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hasten.errors import Misconfigured

LAUNCHER = "HASTEN_LAUNCHER"  # the process that started a rank of `--nproc`
COUNTS_STARTS = "TORCHELASTIC_RESTART_COUNT"  # set by a launcher that can restart all ranks
WAIT = "HASTEN_WAIT_SECONDS"  # set by a person, in place of _WAIT_SECONDS
_LONGEST_WAIT = 7 * 24 * 3600.0
_WAIT_SECONDS = 600.0  # long enough to compile, to read a large checkpoint and to build a cache

_SRUN_NAMES = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
_HAS_TERMINAL = "SLURM_PTY_PORT"  # set in an interactive shell, which is one process
_FIRST_PORT, _PORTS = 20_000, 20_000  # below the range from which systems pick ports


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process in a group of processes.

    group: torch's process group; None is the default group.
    """

    rank: int = 0
    size: int = 1
    group: Any = field(default=None, compare=False, repr=False)

    @property
    def many(self) -> bool:
        return self.size > 1

    @property
    def leads(self) -> bool:
        """True on rank 0, which writes files and prints."""
        return self.rank == 0


ALONE = Ranks()


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """This process among all ranks, and among those of this machine.

    restarts: how often the launcher of this machine has restarted all ranks. Launchers of other machines may count
        differently.
    """

    all: Ranks = ALONE
    here: Ranks = ALONE
    restarts: int = 0


def launched(environment: Mapping[str, str] = os.environ) -> Launched:
    """What the launcher has set; a single process without one. Raises Misconfigured for impossible values."""
    environment = {**environment, **as_torchrun(environment)}
    size = _number(environment, "WORLD_SIZE", 1)
    restarts = _number(environment, COUNTS_STARTS, 0)
    if size == 1:
        return Launched(restarts=restarts)
    every = Ranks(_number(environment, "RANK"), size)
    # A launcher that sets no local ranks uses one machine.
    here = Ranks(_number(environment, "LOCAL_RANK", every.rank), _number(environment, "LOCAL_WORLD_SIZE", size))
    if every.rank >= size or here.rank >= here.size or here.size > size:
        values = f"RANK={every.rank}, LOCAL_RANK={here.rank}, LOCAL_WORLD_SIZE={here.size}"
        raise Misconfigured(f"contradicts {values}", where=f"WORLD_SIZE={size}", fix="start all ranks with torchrun")
    return Launched(all=every, here=here, restarts=restarts)


def wait_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How long a rank waits for the others before it reports a hang. Raises Misconfigured."""
    value = environment.get(WAIT, "")
    try:
        seconds = float(value or _WAIT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_WAIT:
        raise Misconfigured(f"is {value!r}", where=WAIT, fix="write seconds: above 0, one week at most")
    return seconds


def leads(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process prints. True where the launcher's values are impossible, so that an error is seen."""
    try:
        return launched(environment).all.leads
    except Misconfigured:
        return True


def as_torchrun(environment: Mapping[str, str]) -> dict[str, str]:
    """torchrun's variables for a process of srun; nothing for any other process."""
    srun = {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", *_SRUN_NAMES.values()} <= environment.keys()
    if "WORLD_SIZE" in environment or not srun or _HAS_TERMINAL in environment:
        return {}
    found = {name: environment[theirs] for name, theirs in _SRUN_NAMES.items()}
    here = tasks_on(environment.get("SLURM_STEP_TASKS_PER_NODE", ""), environment.get("SLURM_NODEID", "0"))
    found |= {"LOCAL_WORLD_SIZE": str(here)} if here is not None else {}
    port = _port(environment.get("SLURM_JOB_ID", ""), environment["SLURM_STEP_ID"])
    rendezvous = {"MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]), "MASTER_PORT": str(port)}
    return found | {name: value for name, value in rendezvous.items() if name not in environment}


def environment_of(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun sets for one of so many ranks on this machine. port: of a store on its loopback interface, which
    exists already."""
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(size)),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        COUNTS_STARTS: "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def first_host(hosts: str) -> str:
    """The first host of SLURM's list: "node[03-05,9],other" -> "node03"."""
    name = re.match(r"(?P<stem>[^,\[]*)(?:\[(?P<first>\d+)[^\]]*\](?P<tail>[^,\[]*))?", hosts)
    return "" if name is None else f"{name['stem']}{name['first'] or ''}{name['tail'] or ''}"


def tasks_on(counts: str, node: str) -> int | None:
    """How many processes a host runs, by SLURM's list: "4(x2),3" is 4, 4, 3. None where the list does not say."""
    each = [int(count) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts) for _ in range(int(times or 1))]
    return each[int(node)] if node.isdecimal() and int(node) < len(each) else None


def _port(*numbers: str) -> int:
    """The same for all processes of a job step, and different for most other steps."""
    return _FIRST_PORT + sum(int(each) for each in numbers if each.isdecimal()) % _PORTS


def _number(environment: Mapping[str, str], name: str, absent: int | None = None) -> int:
    value = environment.get(name, "")
    if value.isdecimal():
        return int(value)
    if not value and absent is not None:
        return absent
    what = f"is {value!r}, which is not a number" if value else "is not set, though WORLD_SIZE is"
    raise Misconfigured(what, where=name, fix="start all ranks with torchrun, or with --nproc")
