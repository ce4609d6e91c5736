from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from hasten.training.probes.peak_memory import peak_memory


def test_the_peak_of_a_process_keeps_what_was_freed():
    read = peak_memory(torch.device("cpu"))
    held = torch.ones(64 << 20, dtype=torch.uint8)
    with_it = psutil.Process().memory_info().rss
    del held
    # The kernel counts pages in batches on each core, so the two readings may lie a little apart.
    assert with_it - (4 << 20) <= read() <= 100 * with_it


@pytest.mark.gpu
def test_the_peak_of_a_device_keeps_what_was_freed():
    read = peak_memory(torch.device("cuda"))
    before = read()
    torch.ones(before + (64 << 20), dtype=torch.uint8, device="cuda")
    assert read() >= before + (64 << 20)


def test_where_the_kernel_does_not_tell_it_the_usage_does(monkeypatch):
    monkeypatch.setattr("hasten.training.probes.peak_memory._PEAK", re.compile(b"nowhere"))
    assert peak_memory(torch.device("cpu"))() > 1 << 20


READS_ITS_PEAK = """
import torch
from hasten.training.probes.peak_memory import peak_memory
print(peak_memory(torch.device("cpu"))(), flush=True)
"""


@pytest.mark.proof
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="elsewhere a process begins with its parent's peak")
def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it():
    held = torch.ones(1 << 30, dtype=torch.uint8)
    said = subprocess.run([sys.executable, "-c", READS_ITS_PEAK], capture_output=True, text=True, check=True).stdout
    assert int(said) < held.nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the usage is a process's own from its beginning")
def test_what_takes_long_to_read_is_asked_only_until_the_peak_is_the_processs_own(monkeypatch):
    asked = list[int]()

    def status() -> int:
        asked.append(8)
        return 8

    monkeypatch.setattr("hasten.training.probes.peak_memory._of_status", status)
    usage = iter([9, 8, 8, 10])
    monkeypatch.setattr("hasten.training.probes.peak_memory._by_usage", lambda: lambda: next(usage))
    read = peak_memory(torch.device("cpu"))
    assert [read() for _ in range(4)] == [8, 8, 8, 10]
    assert len(asked) == 2
