"""The machine that a job runs on: what techniques depend on.

Machine records what does not change. Functions return what is free now, or None where the system does not report it.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hasten.facts.formatting import byte_size

SHARED_MEMORY = Path("/dev/shm")  # where Linux keeps the memory that processes share by name
_GPU_DEVICES = ("nvidiactl", "kfd", "dxg", "dri")  # of NVIDIA, of AMD, under Windows, of all that draw


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    cores: int  # cores this process may run on, not all that the host has
    memory_bytes: int
    processor: str
    processor_features: frozenset[str]  # as the kernel names them: "avx512_bf16", "amx_bf16", …; empty if it names none
    accelerator: str | None  # the device's name; None on a machine without one
    accelerators: int
    accelerator_memory_bytes: int
    compute_capability: tuple[int, int] | None  # of a CUDA device
    torch: str
    shared_memory_bytes: int | None = None  # of /dev/shm, through which loader workers send; None where there is none
    ranks: int = 1  # processes of this run on it, which share its cores and its memory

    @property
    def device(self) -> str:
        """The torch device type on which a job runs when it names none."""
        return "cpu" if self.accelerator is None else "cuda"

    @property
    def summary(self) -> str:
        accelerator = f"{self.accelerators} × {self.accelerator}" if self.accelerator else "no accelerator"
        memory = byte_size(self.memory_bytes)
        return f"{self.cores} cores of {self.processor}, {memory}, {accelerator}, torch {self.torch}"


def read_machine() -> Machine:
    """The machine that runs this process. Loads torch."""
    import psutil
    import torch

    found = torch.cuda.is_available()
    properties = cast(Any, torch.cuda).get_device_properties(0) if found else None
    return Machine(
        cores=usable_cores(),
        memory_bytes=min(psutil.virtual_memory().total, _control_group_limit()),
        processor=_cpuinfo("model name") or platform.processor() or platform.machine(),
        processor_features=frozenset((_cpuinfo("flags") or _cpuinfo("Features")).split()),  # the second name is ARM's
        accelerator=properties.name if properties else None,
        accelerators=torch.cuda.device_count() if found else 0,
        accelerator_memory_bytes=properties.total_memory if properties else 0,
        compute_capability=(properties.major, properties.minor) if properties else None,
        torch=torch.__version__,
        shared_memory_bytes=_shared_memory("f_blocks"),
        ranks=ranks_here(),
    )


def ranks_here() -> int:
    """How many processes of this run are on this machine; all of them where the launcher does not set it."""
    import torch.distributed as dist

    joined = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(local), joined) if local.isdecimal() and int(local) else joined


def has_accelerator() -> bool:
    """Whether torch can use one here. Loads torch, but not on Linux without a device of any GPU."""
    if sys.platform == "linux" and not any(Path("/dev", each).exists() for each in _GPU_DEVICES):
        return False
    import torch

    return torch.accelerator.is_available()


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int:
    """Bytes that can be allocated without swapping."""
    import psutil

    left = _control_group_limit() - _control_group_use()
    return max(0, min(psutil.virtual_memory().available, left))


def free_shared_memory() -> int | None:
    """Bytes that are free in /dev/shm; None where there is none."""
    return _shared_memory("f_bavail")


def killed_for_memory() -> int | None:
    """How many processes the kernel's OOM killer has ended: in this process's control group, else on the machine; None
    where neither counts them."""
    for path in _control_group_files("memory.events", "memory.oom_control"):
        found = _counter(path, "oom_kill")
        if found is not None:
            return found
    return _counter(Path("/proc/vmstat"), "oom_kill")


def _shared_memory(what: str) -> int | None:
    try:
        found = os.statvfs(SHARED_MEMORY)
    except (OSError, AttributeError):
        return None
    return getattr(found, what) * found.f_frsize


def _control_group_limit() -> int:
    """The memory limit of this process's control group in bytes; a very large number without one."""
    for path in _control_group_files("memory.max", "memory.limit_in_bytes"):
        text = _text(path).strip()
        if text:
            return int(text) if text.isdigit() else 1 << 62
    return 1 << 62


def _control_group_use() -> int:
    """Bytes that this process's control group uses, without file pages that can be evicted at once."""
    for path in _control_group_files("memory.current", "memory.usage_in_bytes"):
        text = _text(path).strip()
        if text.isdigit():
            counted = path.with_name("memory.stat")
            pages = _counter(counted, "total_inactive_file") or _counter(counted, "inactive_file") or 0
            return max(0, int(text) - pages)
    return 0


def _control_group_files(second: str, first: str) -> Iterator[Path]:
    """Where a file of the memory controller may be, by its name in version 2 and 1 of control groups. Inside a
    container, the group is the root of what is visible."""
    root = Path("/sys/fs/cgroup")
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        number, controllers, place = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            yield root / place.lstrip("/") / second
            yield root / second
        elif "memory" in controllers.split(","):
            yield root / "memory" / place.lstrip("/") / first
            yield root / "memory" / first


def _counter(path: Path, name: str) -> int | None:
    for line in _text(path).splitlines():
        key, _, number = line.partition(" ")
        if key == name and number.strip().isdigit():
            return int(number)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # another system, or another version of it


def _cpuinfo(key: str) -> str:
    lines = _text(Path("/proc/cpuinfo")).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
