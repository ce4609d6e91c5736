"""Refuses scripts that train in several processes: a trial is one process, which does not start the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from hasten.errors import Misconfigured
from hasten.scripts.patching import replaced

_FIX = "let it train in one process where no launcher has set WORLD_SIZE"
_FOREVER = ExitStack()


def refuse_several_processes() -> None:
    """For the rest of this process. A process group of one process is none of several."""
    _FOREVER.enter_context(replaced(torch.distributed, "init_process_group", _joined))
    _FOREVER.enter_context(replaced(torch.multiprocessing, "spawn", _spawned))


def _joined(original: Callable[..., None], *args: Any, **named: Any) -> None:
    size = named.get("world_size", 1)
    try:
        if size <= 1:
            original(*args, **named)
            size = torch.distributed.get_world_size()
    except ValueError as error:  # the environment has no ranks
        raise Misconfigured(f"init_process_group needs a launcher, and hasten is none: {error}", fix=_FIX) from error
    if size > 1:
        raise Misconfigured(f"trains in {size} processes, and a script is tuned as one", fix=_FIX)


def _spawned(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    raise Misconfigured("torch.multiprocessing.spawn starts its training, and a script is tuned as one", fix=_FIX)
