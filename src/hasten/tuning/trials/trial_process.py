"""The process of one trial, forked by multiprocessing's fork server, which has loaded torch, hasten, and libraries that
trials can share, but nothing of the user's: it starts at once and inherits neither data nor settings. It is stopped
between its windows with all that it has started, and killed with it at its end."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from hasten.checkpoint.files import remove_folder
from hasten.checkpoint.folders.process_folder import process_folder, remove_after_multiprocessing
from hasten.errors import StorageFailed
from hasten.tuning.shared_libraries import ADDED, NAMES
from hasten.tuning.trials.child_process import ChildProcess, Messages
from hasten.tuning.trials.process_tree import continue_all, stop_all

END_SECONDS = 10.0  # that the kernel may take to release what was killed
_HASH_SEED = "PYTHONHASHSEED"
_OURS = ("hasten.tuning.trials.end_with_search", "hasten.tuning.trials.trial_requests", "torch._dynamo")
_SHARED = "hasten.tuning.shared_libraries"
SHOWS_NOWHERE = {"MPLBACKEND": "Agg"}  # which Matplotlib reads when it is loaded: trials show no window
_FORKS_KEEP_CUDA = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # though a library calls torch.cuda.is_available()


def start_fork_server(libraries: Sequence[str] = ()) -> Any:
    """The context of the server, which loads torch meanwhile. libraries: that it loads too, where it does not run
    yet."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_OURS, _SHARED])
    from multiprocessing.forkserver import ensure_running

    remove_after_multiprocessing()
    before, tempfile.tempdir = tempfile.tempdir, str(process_folder())  # which is removed, also after a kill
    own = dict(os.environ)
    try:
        os.environ.update(with_hash_seed(os.environ) | SHOWS_NOWHERE | _FORKS_KEEP_CUDA)
        os.environ[NAMES] = json.dumps([*libraries])
        ensure_running()
    finally:
        tempfile.tempdir = before
        os.environ.update(own)
        for name in os.environ.keys() - own.keys():
            del os.environ[name]
    return context


class TrialProcess:
    """Starts when made; end() it whatever happens. serves: "module:function", which is called in the process with its
    messages and the arguments. Raises OSError or EOFError where the fork server has ended.

    folder: its own, which the next process removes where this one is killed.
    """

    def __init__(self, serves: str, libraries: Sequence[str], *arguments: Any) -> None:
        self.folder = tempfile.mkdtemp(prefix="trial-", dir=process_folder())
        self._is_over = False
        place = (environment_within(self.folder), sys.path, os.getcwd())
        server = start_fork_server([serves.partition(":")[0], *libraries])
        self.child = ChildProcess(server, _live, serves, arguments, place)

    def stop(self) -> None:
        """Stop it and all that it has started."""
        if not self._is_over:
            stop_all(self.child.pid)

    def resume(self) -> None:
        if not self._is_over:
            continue_all(self.child.pid)

    def end(self) -> None:
        """Kill it and all that it has started, and wait for that."""
        if self._is_over:
            return
        self._is_over = True
        self.child.kill(END_SECONDS)
        with suppress(StorageFailed):
            remove_folder(Path(self.folder))
        self.child.close()


def with_hash_seed(environment: Mapping[str, str]) -> dict[str, str]:
    """Sets of strings have one order in all processes of this environment: that of all trials."""
    return {_HASH_SEED: "0", **environment}


def environment_within(folder: str) -> dict[str, str]:
    """This process's environment, with every place for caches and temporary files inside a folder: no arm finds what
    another has made, or leaves something (trap 49). Python writes no bytecode beside the user's files."""
    ours = ("HASTEN_CACHE", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    return {**os.environ, **dict.fromkeys(ours, folder), "PYTHONDONTWRITEBYTECODE": "1"}


Place = tuple[Mapping[str, str], Sequence[str], str]
"""Environment, path of modules and present folder: the fork server has those of its own start."""


def _live(messages: Messages, serves: str, arguments: Sequence[Any], place: Place) -> None:
    import torch

    module, _, function = serves.partition(":")
    serve = getattr(import_module(module), function)

    with suppress(OSError):  # the system, out of memory, ends trials first: proc_pid_oom_score_adj(5)
        Path("/proc/self/oom_score_adj").write_text("1000")
    environment, sys.path[:], folder = place
    os.environ.clear()
    os.environ.update({**ADDED, **environment})
    tempfile.tempdir = None  # for TMPDIR to be read
    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        torch.set_num_threads(int(threads))  # the server has read its own when it loaded torch
    os.chdir(folder)
    serve(messages, *arguments)
