"""The process groups that a script may make in a trial: of the ranks that a launcher has started, and of itself alone.

A trial starts the script again where it ends early, and stops it while another one runs.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from hasten.errors import Misconfigured
from hasten.facts.ranks import launched
from hasten.scripts.patching import replaced

LONGEST = timedelta(days=7)  # of a collective, in which a trial can be stopped
LAUNCH = "start the ranks by hasten tune --nproc N SCRIPT, or torchrun --nproc-per-node N -m hasten tune SCRIPT"
_FOREVER = ExitStack()


def allow_process_groups() -> None:
    """For the rest of this process. Another group than those is refused."""
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"  # it would end a process that was stopped for minutes
    joined = partial(_joined, launched().all.size)
    _FOREVER.enter_context(replaced(torch.distributed, "init_process_group", joined))
    _FOREVER.enter_context(replaced(torch.distributed, "destroy_process_group", _left))
    _FOREVER.enter_context(replaced(torch.multiprocessing, "spawn", _spawned))


def _joined(started: int, original: Callable[..., None], *args: Any, **named: Any) -> None:
    given = inspect.signature(original).bind(*args, **named).arguments
    size = max(given.get("world_size", -1), 0) or int(os.environ.get("WORLD_SIZE", "1"))
    if size not in (1, started):
        raise Misconfigured(f"trains in {size} processes, and {started} were started", fix=LAUNCH)
    if torch.distributed.is_initialized():
        _destroy()
    try:
        original(**{**given, "timeout": LONGEST})
    except ValueError as error:  # the environment has no ranks
        raise Misconfigured(f"init_process_group needs a launcher: {error}", fix=LAUNCH) from error


_destroy = torch.distributed.destroy_process_group


def _left(original: Callable[..., None], group: Any = None) -> None:
    """The whole group stays until the script makes it again: libraries remember that they have made it."""
    if group is not None and group is not torch.distributed.group.WORLD:
        original(group)


def _spawned(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    what = "torch.multiprocessing.spawn starts its training, in processes that are not timed"
    raise Misconfigured(what, fix=f"call the training function without spawn, read RANK and WORLD_SIZE, and {LAUNCH}")
