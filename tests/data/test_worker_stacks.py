"""Asking workers where they stand, on systems that have other signals than this one."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import pkgutil, signal, sys
import psutil, torch.utils.data  # made for the system that they run on
for name in {missing}:
    delattr(signal, name)
for name in {modules}:
    sys.modules[name] = None
import hasten
for module in pkgutil.walk_packages(hasten.__path__, "hasten."):
    if not module.name.endswith(("__main__", "_triton")):  # Triton need not be there
        __import__(module.name)
from hasten.data.workers.process_stacks import signal_to_ask_by
found = signal_to_ask_by()
print(None if found is None else int(found))
"""
WINDOWS_LACKS = ["SIGUSR1", "SIGUSR2", "SIGRTMIN", "SIGRTMAX", "SIGCHLD", "SIGBUS", "SIGKILL", "pthread_sigmask"]


@pytest.mark.parametrize(
    ("missing", "modules", "asked_by"),
    [
        pytest.param([], [], signal.SIGRTMAX - 1, marks=pytest.mark.proof),
        pytest.param(["SIGRTMIN", "SIGRTMAX"], [], int(signal.SIGUSR2), marks=pytest.mark.proof),
        (WINDOWS_LACKS, ["fcntl", "resource", "pwd", "grp"], None),
    ],
    ids=["Linux", "macOS", "Windows"],
)
def test_every_module_loads_whatever_signals_the_system_has(
    missing: list[str], modules: list[str], asked_by: int | None
):
    program = PROGRAM.format(missing=missing, modules=modules)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(asked_by)
