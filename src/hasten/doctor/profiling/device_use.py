"""How steps use an accelerator: how long its kernels run, and what its allocator does.

torch's profiler records when each kernel and each copy began and ended. The seconds of steps are measured elsewhere,
without the profiler: it slows Python, and not the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import DeviceType, ProfilerActivity, profile

from hasten.facts.profiles import DeviceUse
from hasten.techniques.allocator import fragmentation

_MICROSECOND = 1e-6
Interval = tuple[float, float]


def cuda_use(device: torch.device, take_steps: Callable[[], int]) -> DeviceUse:
    """Of the steps that `take_steps` takes and counts; it must return when the device is done with them. Resets CUDA's
    peak memory statistics of this process."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:  # one cycle: else torch warns
        steps = take_steps()
    stats = torch.cuda.memory_stats(device)
    ran = intervals(profiled.events() or (), DeviceType.CUDA)
    return DeviceUse(
        busy_seconds=covered(ran) / steps if ran else None,
        steps=steps,
        retries=stats["num_alloc_retries"] - before["num_alloc_retries"],
        reserved_bytes=stats["reserved_bytes.all.peak"],
        fragmented=fragmentation(stats),
    )


def intervals(events: Iterable[Any], kind: DeviceType) -> list[Interval]:
    """Begin and end, in seconds, of what the profiler recorded on devices of a kind, without the user's annotations."""
    return [
        (event.time_range.start * _MICROSECOND, event.time_range.end * _MICROSECOND)
        for event in events
        if event.device_type == kind and not event.is_user_annotation
    ]


def covered(found: Iterable[Interval]) -> float:
    """Seconds in which at least one of them lasts."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(found):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
