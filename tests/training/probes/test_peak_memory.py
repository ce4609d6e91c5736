from __future__ import annotations

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
