from __future__ import annotations

import psutil
import pytest
import torch

from hasten.training.peak_memory import peak_memory


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
