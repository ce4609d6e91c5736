"""What a script changes in its process, as it was before: another start of the script finds it as the first one did.

The user's own modules are imported again, because they may hold a model, an optimizer or a count. Libraries stay
loaded, as loading torch takes longer than many scripts do: what the script has registered there stays registered.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from types import ModuleType

import torch


class ProcessState:
    """copy: the folder that the script and its modules are in."""

    def __init__(self, copy: Path) -> None:
        self._copy, self._main = copy, sys.modules["__main__"]
        self._folder, self._search, self._variables = os.getcwd(), [*sys.path], dict(os.environ)
        self._printed_to, self._dtype = (sys.stdout, sys.stderr), torch.get_default_dtype()

    def restore(self) -> None:
        os.chdir(self._folder)
        sys.path[:] = self._search
        for name in os.environ.keys() - self._variables.keys():
            del os.environ[name]
        changed = self._variables.items() - os.environ.items()
        os.environ.update(changed)
        for name in [name for name, module in sys.modules.items() if self._is_users(module)]:
            del sys.modules[name]
        sys.modules["__main__"] = self._main
        sys.stdout, sys.stderr = self._printed_to
        torch.set_default_dtype(self._dtype)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        gc.collect()  # a model of the earlier start would be in the peak memory of this one

    def _is_users(self, module: ModuleType) -> bool:
        values = getattr(module, "__dict__", {})  # another attribute can import more
        files = [values.get("__file__"), *(values.get("__path__") or ())]  # a namespace package has no file
        return any(Path(file).is_relative_to(self._copy) for file in files if isinstance(file, str))
