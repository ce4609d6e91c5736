"""The Triton form of an operator, which Triton compiles for the accelerator that a tensor is on.

A form is a module beside its operator, as gelu_triton.py is beside gelu.py. It is imported when the operator first
meets a tensor on an accelerator. Triton may not be installed, or may lack a C compiler or Python's headers. So a form
is tried once on each device, and the plain form is used where it does not run.
"""

from __future__ import annotations

import functools
import importlib
import subprocess
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


class TritonForm:
    """name: of the module. run: calls one of its functions on a small tensor on the device, to try it."""

    def __init__(self, name: str, run: Callable[[ModuleType, torch.device], object]) -> None:
        self.name, self.run = name, run
        self._found = functools.cache(self._tried)

    def why_plain(self, device: torch.device) -> str | None:
        """Why the plain form is used there; None where this one is. The first call for a device compiles."""
        found = self._found(device)
        return found if isinstance(found, str) else None

    def taking(self, *tensors: Tensor) -> ModuleType | None:
        """The module, where it runs on their device and knows the one dtype that all have; None otherwise."""
        known = tensors[0].dtype in DTYPES and all(each.dtype == tensors[0].dtype for each in tensors)
        found = self._found(tensors[0].device) if known else None
        return found if isinstance(found, ModuleType) else None

    def function(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """The module's function of this name, or the plain form where the module does not run or knows no dtype."""

        def on_cuda(*given: Any) -> Any:
            module = self.taking(*(each for each in given if isinstance(each, Tensor)))
            return plain(*given) if module is None else getattr(module, name)(*given)

        return on_cuda

    def _tried(self, device: torch.device) -> ModuleType | str:
        try:
            module = importlib.import_module(self.name)
            self.run(module, device)
        except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as reason:
            return str(reason)
        return module
