"""Compile a model in place, and log how long that takes, how often it happens, and where the code is cached.

The log is read from torch's callbacks at both ends of every compilation, and from its warning that it will not compile
a function once more. Checked on torch 2.9 to 2.13.

Compiled code is loaded from a cache and executed. torch's default is a known name under /tmp, which any user can create
first, so ours is below the user's cache directory. TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR are used unchanged.
"""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch._dynamo.config
from torch import nn
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from hasten.checkpoint.folders.private_folders import own_folder, user_cache
from hasten.techniques.setup import CompileOptions

_WARNS = "torch._dynamo.convert_frame"
_VALUE = re.compile(r"self\b|L\['self'\]|\w+(\.\w+|\[.+?\])* == ")


class LimitReached(logging.Handler):
    """reason: why torch's limit of recompilations was reached, and what to do; empty as long as it was not."""

    def __init__(self, *, is_dynamic: bool) -> None:
        super().__init__(logging.WARNING)
        self._is_dynamic = is_dynamic
        self.reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        if self.reason or not str(record.msg).startswith("torch._dynamo hit config.%s") or len(record.args or ()) < 4:
            return
        _, limit, function, guard = map(str, tuple(record.args or ())[:4])
        guard = " ".join(re.sub(r"^\d+/\d+: ", "", guard).partition("(HINT")[0].partition("  #")[0].split())
        if "mismatch at index" in guard or "stride" in guard:
            cure = "pad batches to few sizes" if self._is_dynamic else "set dynamic = true in the options of compile"
        elif _VALUE.match(guard):
            cure = "keep that value in a tensor (register_buffer), or out of what forward reads"
        else:
            cure = "keep what changes out of what forward reads, or remove compile from the plan"
        self.reason = (
            f"{function} was compiled {limit} times, which is torch's limit, and runs without compilation since "
            f"whenever none of these fits: {guard}; {cure}"
        )


@dataclass(kw_only=True, slots=True)
class CompileLog:
    """What this process has compiled since the log began: the model, and whatever else was compiled meanwhile."""

    options: CompileOptions
    seconds: float = 0.0
    graphs: int = 0  # times that a piece of Python was translated, for the first time or again
    recompiles: int = 0  # of these, again: for another shape, or because something it relied on had changed
    began: float = 0.0  # of the compilation under way, on the monotonic clock
    limit: LimitReached = field(init=False)

    def __post_init__(self) -> None:
        self.limit = LimitReached(is_dynamic=self.options.dynamic is True)

    def summary(self) -> str:
        """One line."""
        backend = self.options.backend
        took = "compiling" if backend is None else "tracing"
        line = f"{took} took {self.seconds:.1f} s: {self.graphs} graphs, {self.recompiles} of them again"
        line += f". {self.limit.reason}" if self.limit.reason else ""
        if backend is None:
            return line
        found = ", ".join(f"{times} by {name}" for name, times in sorted(backend.found.items()))
        return f"{line}. fused_operators: {found or 'no operation to replace was found'}"

    def start(self) -> None:
        callback_handler.register_start_callback(self._on_start)
        callback_handler.register_end_callback(self._on_end)
        logging.getLogger(_WARNS).addHandler(self.limit)

    def stop(self) -> None:
        """Count nothing from here on."""
        logging.getLogger(_WARNS).removeHandler(self.limit)
        if self._on_start in callback_handler.start_callbacks:  # torch.compiler.reset removes them as well
            callback_handler.remove_start_callback(self._on_start)
            callback_handler.remove_end_callback(self._on_end)

    def _on_start(self, compilation: CallbackArgs) -> None:
        self.began = time.perf_counter()
        if compilation.callback_trigger is CallbackTrigger.DYNAMO:
            self.graphs += 1
            self.recompiles += not compilation.compile_id.endswith("/0")

    def _on_end(self, compilation: CallbackArgs) -> None:
        self.seconds += time.perf_counter() - self.began


def compile_model(model: nn.Module, options: CompileOptions) -> CompileLog:
    """Compile `model` in place from its next call on; its identity, names and state_dict keys stay. Returns the log.

    Raises StorageFailed when the directory for compiled code cannot be made, or can be written by others.
    """
    keep_code_private()
    log = CompileLog(options=options)
    log.start()
    # Dynamo steps over torch's own frames, and so over a root that is an nn.Sequential, unless it is put into another.
    with torch._dynamo.config.patch(wrap_top_frame=type(model).forward.__module__.partition(".")[0] == "torch"):
        if options.backend is None:
            model.compile(mode=options.mode, dynamic=options.dynamic)
        else:
            model.compile(backend=options.backend, dynamic=options.dynamic)
    return log


def keep_code_private() -> None:
    """Have torch and Triton keep compiled code in our own directory, where the user has not chosen another."""
    # torch itself fills in its default when Dynamo is imported, which is no choice of the user.
    unchosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR") in (None, os.path.abspath(default_cache_dir()))
    if unchosen or "TRITON_CACHE_DIR" not in os.environ:
        directory = user_cache("compiled")
        os.environ.setdefault("TRITON_CACHE_DIR", str(directory / "triton"))
        if unchosen:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory)
    # torch precompiles C++ headers below its default, whatever the variable says.
    own_folder(Path(default_cache_dir()), "set TMPDIR to a folder of your own")
