"""Options of the process hold inside the block, are taken back after it, and what cannot be set is said.

What outlives a process's first operation (compute threads, the C library's heap) is tested in processes of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from hasten.techniques.setup import ProcessOptions
from hasten.training.setup.process_options import process_options

CAN_FLUSH = torch.set_flush_denormal(False)
CAN_BE_ASKED = hasattr(torch._C, "_accelerator_getAllocatorSettings")  # torch 2.10 and newer
WITH_GLIBC = "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", {})


@pytest.fixture(autouse=True)
def _known_state():
    """So that what one test leaks is not taken for the former state by the next."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = True, False


def tiny():
    """The smallest denormal number, times one: zero exactly where the calling thread flushes."""
    return int((torch.ones(1, dtype=torch.int32).view(torch.float32) * 1.0).view(torch.int32).item())


def state():
    return {
        "threads": torch.get_num_threads(),
        "denormal": tiny(),
        "float32_matmul": torch.get_float32_matmul_precision(),
        "tf32": torch.backends.cudnn.allow_tf32,
        "benchmark": torch.backends.cudnn.benchmark,
        "environment": dict(os.environ),
        "allocator": torch._C._accelerator_getAllocatorSettings() if CAN_BE_ASKED else None,
    }


def everything():
    return ProcessOptions(
        threads=2,
        flush_denormals=True if CAN_FLUSH else None,
        float32_matmul="high",
        cudnn_tf32=not torch.backends.cudnn.allow_tf32,
        cudnn_benchmark=not torch.backends.cudnn.benchmark,
        environment={"HASTEN_TEST": "on", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:256"},
        keep_freed_memory=True if WITH_GLIBC else None,
    )


def run(program: str) -> list[str]:
    """The lines that a program prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_option_holds_inside():
    before = state()
    with process_options(everything()):
        inside = state()
    assert inside["threads"] == 2
    assert inside["denormal"] == (0 if CAN_FLUSH else 1)
    assert inside["float32_matmul"] == "high"
    assert inside["tf32"] is not before["tf32"]
    assert inside["benchmark"] is not before["benchmark"]
    assert inside["environment"]["HASTEN_TEST"] == "on"
    assert inside["environment"]["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:256"


@pytest.mark.skipif(not CAN_BE_ASKED, reason="this version of torch can be told allocator settings, but not asked")
def test_the_allocator_is_told_a_setting_that_comes_after_the_import():
    with process_options(ProcessOptions(environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})):
        assert torch._C._accelerator_getAllocatorSettings() == "expandable_segments:True"
    assert torch._C._accelerator_getAllocatorSettings() != "expandable_segments:True"


def test_every_option_is_taken_back_after_an_exception():
    before = state()
    with pytest.raises(ZeroDivisionError), process_options(everything()):
        raise ZeroDivisionError
    assert state() == before


def test_blocks_inside_each_other_come_back_one_by_one(monkeypatch):
    monkeypatch.setenv("HASTEN_TEST", "shell")
    with process_options(ProcessOptions(threads=2, environment={"HASTEN_TEST": "outer"})):
        with process_options(ProcessOptions(threads=3, environment={"HASTEN_TEST": "inner"})) as notices:
            assert (torch.get_num_threads(), os.environ["HASTEN_TEST"]) == (3, "inner")
            assert notices == ["HASTEN_TEST was outer; during this run it is inner"]
        assert (torch.get_num_threads(), os.environ["HASTEN_TEST"]) == (2, "outer")
    assert (torch.get_num_threads(), os.environ["HASTEN_TEST"]) == (1, "shell")


@pytest.mark.proof
def test_a_precision_that_was_set_through_the_newer_interface_is_left_and_said():
    lines = run("""
import torch
from hasten.techniques.setup import ProcessOptions
from hasten.training.setup.process_options import process_options

torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.backends.cudnn.conv.fp32_precision = "ieee"
with process_options(ProcessOptions(float32_matmul="highest", cudnn_tf32=True)) as notices:
    print(torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision)
print(*notices, sep="\\n")
""")
    assert lines == [
        "tf32 ieee",
        "float32 matrix products stay as this process has set them through fp32_precision, not highest",
        "cudnn.allow_tf32 stays as this process has set it through fp32_precision, not True",
    ]


FAULTS = """
import ctypes
import resource
import torch
from hasten.techniques.setup import ProcessOptions
from hasten.training.setup.process_options import process_options

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.zeros(16 << 20)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

class Information(ctypes.Structure):  # struct mallinfo of glibc
    _fields_ = [(name, ctypes.c_int) for name in "arena ordblks smblks hblks hblkhd usmblks".split()] + [
        (name, ctypes.c_int) for name in "fsmblks uordblks fordblks keepcost".split()
    ]

def is_mapped():
    ask = ctypes.CDLL(None).mallinfo
    ask.restype = Information
    before = ask().hblks
    block = torch.empty(16 << 20)
    return ask().hblks > before

torch.set_num_threads(1)
print(faults(), is_mapped())
with process_options(ProcessOptions(keep_freed_memory=True)) as notices:
    for _ in range(8):  # glibc puts rests beside a block into small caches, and reuses a place once those are full
        faults()
    print(faults(), is_mapped())
print(faults(), is_mapped())
print(notices)
"""


@pytest.mark.proof
@pytest.mark.skipif(not WITH_GLIBC, reason="needs the GNU C library")
def test_kept_memory_is_not_faulted_in_again():
    *lines, notices = run(FAULTS)
    (without, mapped), (kept, mapped_inside), (after, _) = (line.split() for line in lines)
    assert notices == "[]"
    assert int(kept) < int(without) / 20 < int(after)  # far apart: a kernel may serve part of a block by larger pages
    assert (mapped, mapped_inside) == ("True", "False")  # afterwards a place of the heap may serve, emptied


@pytest.mark.gpu
def test_a_card_gets_the_segments_that_a_plan_asks_for():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    lines = run("""
import torch
from hasten.techniques.setup import ProcessOptions
from hasten.training.setup.process_options import process_options

with process_options(ProcessOptions(environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})) as notices:
    held = torch.zeros(1 << 20, device="cuda")
    print(all(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()), notices)
""")
    assert lines == ["True []"]
