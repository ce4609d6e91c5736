"""The forms that operators have on accelerators, in Triton, which compiles them for the one at hand.

A form is a module beside its operator, gelu_triton.py beside gelu.py, and is imported when a tensor on an accelerator
is first met. Triton may not be installed, or want a C compiler and Python's headers that are not there; so a form is
tried once on each device, and where it does not run the plain one takes its place.
"""

from __future__ import annotations

import functools
import importlib
import subprocess
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

FORMATS = frozenset({torch.float32, torch.bfloat16, torch.float16})


class InTriton:
    """A form in Triton. name: of its module. run: calls one of its functions on a small tensor of the device."""

    def __init__(self, name: str, run: Callable[[ModuleType, torch.device], object]) -> None:
        self._name, self._run = name, run
        self._found = functools.cache(self._tried)

    def why_plain(self, device: torch.device) -> str | None:
        """Why the plain form is used there; None where this one is. Compiles on the first call in a process."""
        found = self._found(device)
        return found if isinstance(found, str) else None

    def taking(self, *tensors: Tensor) -> ModuleType | None:
        """The module, where it is there and knows the format that all of them have; None where it does not."""
        known = tensors[0].dtype in FORMATS and all(each.dtype == tensors[0].dtype for each in tensors)
        found = self._found(tensors[0].device) if known else None
        return found if isinstance(found, ModuleType) else None

    def _tried(self, device: torch.device) -> ModuleType | str:
        try:
            module = importlib.import_module(self._name)
            self._run(module, device)
        except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as reason:
            return str(reason)
        return module
