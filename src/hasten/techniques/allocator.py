"""Change how memory is requested, cached and split.

What it does: configures the memory allocator. The first three values are for torch's caching allocator on CUDA, the
last one is for the GNU C library on Linux.

  * "expandable_segments": reserves address space once, and maps memory into
    it as it grows. Needs Linux.
  * "max_split_size": never splits blocks above 256 MiB.
  * "roundup_power2": rounds sizes up to eighths of a power of two, so that
    nearly equal requests share blocks.
  * "keep_freed_memory": on a CPU, keeps large freed blocks in the process
    instead of returning them to the kernel.

Why it is faster: on CUDA, free memory in small pieces is unusable. When no piece fits, the allocator synchronizes the
device, releases its cache and asks the driver again. On a CPU, the kernel fills new memory with zeros page by page when
it is first touched, again in every step. These page faults are counted: where they take little of a step,
"keep_freed_memory" is not tried.

When it loses: where all steps request the same sizes, memory hardly fragments. Rounded sizes and unsplit blocks hold
more memory than was requested.

What it changes: nothing ("bit-exact"). With "keep_freed_memory" the process stays at its peak size until it ends.

Limits: not every torch version can share expandable segments between processes. "keep_freed_memory" does nothing where
another allocator is preloaded in place of the C library's. In a script, only "keep_freed_memory" can be set: torch
reads the others before the script starts, from PYTORCH_CUDA_ALLOC_CONF.

Example:

    [[choice]]
    technique = "allocator"
    value = "expandable_segments"
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

# Since 2.10 torch also reads PYTORCH_ALLOC_CONF, but this older name first, and 2.9 obeys this one alone on CUDA:
# https://github.com/pytorch/pytorch/issues/183387
CUDA_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_CUDA_SETTINGS = {
    "expandable_segments": "expandable_segments:True",
    "max_split_size": "max_split_size_mb:256",
    "roundup_power2": "roundup_power2_divisions:8",
}


def fragmentation(stats: Mapping[str, int]) -> float:
    """The fraction, 0 to 1, of the reserved CUDA memory that is neither in use nor releasable.

    stats: from torch.cuda.memory_stats(); empty before CUDA is first used. Only the free pieces of segments that are
    partly in use count. A segment that is entirely free is a cache, not a fragment: it can be released.
    Source: https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html, "inactive_split".
    """
    reserved = stats.get("reserved_bytes.all.current", 0)
    return stats["inactive_split_bytes.all.current"] / reserved if reserved else 0.0


def values(device: str, system: str, c_library: str) -> list[str]:
    """The values for a device type of torch, the most promising first. system: sys.platform; c_library: the name that
    platform.libc_ver() returns, empty for one that it does not know."""
    if device == "cuda":
        return [name for name in _CUDA_SETTINGS if name != "expandable_segments" or system == "linux"]
    return ["keep_freed_memory"] if (device, system, c_library) == ("cpu", "linux", "glibc") else []


def _values_here(setup: Setup) -> list[str]:
    return values(setup.device.type, sys.platform, platform.libc_ver()[0])


def applies(setup: Setup) -> Yes | No:
    if _values_here(setup):
        return Yes()
    device, system = setup.device.type, sys.platform
    return No(f"it needs CUDA, or the GNU C library on Linux; this job runs on {device} under {system}")


def candidates(setup: Setup) -> Sequence[Choice]:
    return [Choice(technique="allocator", value=value, preserves=Preserves.BITS) for value in _values_here(setup)]


def apply(setup: Setup, choice: Choice) -> None:
    here = _values_here(setup)
    if choice.value not in here or choice.options:
        known = f"write one of: {', '.join(here)}; no options" if here else "remove the choice on this machine"
        raise PlanError(f"the plan asks for {choice} on {setup.device.type}", where="allocator", fix=known)
    if choice.value == "keep_freed_memory":
        setup.process.keep_freed_memory = True
    else:
        setup.process.environment[CUDA_VARIABLE] = _CUDA_SETTINGS[str(choice.value)]


TECHNIQUE = Technique(
    name="allocator",
    stage=Stage.PROCESS,
    treats=Symptom.SLOW_ALLOCATION,
    values='"expandable_segments", "max_split_size" or "roundup_power2" on CUDA; "keep_freed_memory" on a CPU',
    costs=("reserves more memory than is in use",),
    source="https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
