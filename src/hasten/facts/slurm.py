"""What SLURM's srun tells its processes, as torchrun would tell them.

srun says which process each is of how many, and on which hosts; the first of these hosts is where they meet. A batch
script that runs no srun is one process, whatever it has asked for, and is told of no step.

Source: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SAME = {  # torchrun's name -> srun's
    "RANK": "SLURM_PROCID",
    "WORLD_SIZE": "SLURM_STEP_NUM_TASKS",
    "LOCAL_RANK": "SLURM_LOCALID",
}
_HAS_TERMINAL = "SLURM_PTY_PORT"  # a person's shell, of which one alone types
_FIRST_PORT, _PORTS = 20_000, 20_000  # below those that a system gives out by itself


def as_torchrun(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that torchrun sets, of a process that srun started; none of any other, and of one that a launcher
    has told already."""
    told = {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", *_SAME.values()} <= environment.keys()
    if "WORLD_SIZE" in environment or not told or _HAS_TERMINAL in environment:
        return {}
    found = {name: environment[told] for name, told in _SAME.items()}
    here = tasks_on(environment.get("SLURM_STEP_TASKS_PER_NODE", ""), environment.get("SLURM_NODEID", "0"))
    found |= {"LOCAL_WORLD_SIZE": str(here)} if here is not None else {}
    port = _port(environment.get("SLURM_JOB_ID", ""), environment["SLURM_STEP_ID"])
    meeting = {"MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]), "MASTER_PORT": str(port)}
    return found | {name: value for name, value in meeting.items() if name not in environment}


def first_host(hosts: str) -> str:
    """Of a list as SLURM writes it: "node[03-05,9],other" -> "node03"."""
    name = re.match(r"(?P<stem>[^,\[]*)(?:\[(?P<first>\d+)[^\]]*\](?P<tail>[^,\[]*))?", hosts)
    return "" if name is None else f"{name['stem']}{name['first'] or ''}{name['tail'] or ''}"


def tasks_on(counts: str, node: str) -> int | None:
    """How many processes a host has, by SLURM's list for all: "4(x2),3" is 4, 4, 3. None where it says nothing."""
    each = [int(count) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts) for _ in range(int(times or 1))]
    return each[int(node)] if node.isdecimal() and int(node) < len(each) else None


def _port(*numbers: str) -> int:
    """The same for all processes of a step of a job, and another for most others."""
    return _FIRST_PORT + sum(int(each) for each in numbers if each.isdecimal()) % _PORTS
