"""The machine that a job runs on, as far as a technique's decision can depend on it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import Any, cast


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

    @property
    def device(self) -> str:
        """The torch device type on which a job runs when it names none."""
        return "cpu" if self.accelerator is None else "cuda"

    @property
    def summary(self) -> str:
        accelerator = f"{self.accelerators} × {self.accelerator}" if self.accelerator else "no accelerator"
        gib = self.memory_bytes / 2**30
        return f"{self.cores} cores of {self.processor}, {gib:.0f} GiB, {accelerator}, torch {self.torch}"


def read_machine() -> Machine:
    """Look at the machine that runs this process. Loads torch."""
    import psutil
    import torch

    found = torch.cuda.is_available()
    properties = cast(Any, torch.cuda).get_device_properties(0) if found else None
    return Machine(
        cores=usable_cores(),
        memory_bytes=min(psutil.virtual_memory().total, _control_group_limit()),
        processor=_processor_name(),
        processor_features=_processor_features(),
        accelerator=properties.name if properties else None,
        accelerators=torch.cuda.device_count() if found else 0,
        accelerator_memory_bytes=properties.total_memory if properties else 0,
        compute_capability=(properties.major, properties.minor) if properties else None,
        torch=torch.__version__,
    )


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _control_group_limit() -> int:
    """The memory limit of this process's control group in bytes; a very large number without one."""
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return 1 << 62
    return int(text) if text.isdigit() else 1 << 62


def _cpuinfo(key: str) -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(key):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not a Linux machine: the callers have their own answer for that
    return ""


def _processor_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _processor_features() -> frozenset[str]:
    return frozenset((_cpuinfo("flags") or _cpuinfo("Features")).split())  # the second name is ARM's
