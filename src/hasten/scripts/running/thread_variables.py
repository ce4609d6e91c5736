"""Thread counts that a script sets in its environment before it imports torch.

torch reads them when it is loaded, and a trial's process has loaded torch before the script starts. So they are applied
when the script sets them, as long as it has not imported torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from types import FunctionType, ModuleType

import psutil
import torch

from hasten.facts.machine import usable_cores

_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""torch uses the second one where the first is not set."""


def heed_thread_variables() -> None:
    """For the rest of this process, in which the script has not begun."""
    before = frozenset(sys.modules)
    most = min(usable_cores(), psutil.cpu_count(logical=False) or usable_cores())  # MKL uses no more

    def heed(event: str, args: tuple[bytes, ...]) -> None:
        if event != "os.putenv":
            return
        name, value = map(os.fsdecode, args)
        if name in _VARIABLES and not _torch_was_imported(before):
            given = {**os.environ, name: value}
            threads = next((given[each] for each in _VARIABLES if given.get(each, "").isdecimal()), "0")
            if int(threads):
                torch.set_num_threads(min(int(threads), most))

    sys.addaudithook(heed)  # pyright: ignore[reportArgumentType]


def _torch_was_imported(before: Collection[str]) -> bool:
    """By the script, or by a module that is new since then."""
    new = [name for name in sys.modules if name == "__main__" or name not in before]
    modules = [sys.modules[name] for name in new if name.partition(".")[0] not in ("hasten", "torch")]
    return any(_is_of_torch(each) for module in modules for each in [*getattr(module, "__dict__", {}).values()])


def _is_of_torch(value: object) -> bool:
    match value:
        case ModuleType():
            name = value.__name__
        case type() | FunctionType():
            name = value.__module__
        case _:
            return False
    return name.partition(".")[0].startswith("torch")
