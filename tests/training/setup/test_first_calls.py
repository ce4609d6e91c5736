"""oneMKL's vector mathematics is called first by one thread, before anything of the user's is computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.entry import prepare
from hasten.training.setup.load_job import load_job
from support import small_job

COMPUTING = """
import torch
from support import small_job

torch.zeros(1).frac()  # no other function is called that

def job():
    return small_job()
"""
# Some of those that torch computes by that library; the issue names three.
KNOWN = ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "erf", "erfc", "lgamma")
KNOWN_CALLS = {(name, dtype) for name in KNOWN for dtype in (torch.float32, torch.float64)}


class Called(TorchDispatchMode):
    """The names and dtypes of what is called on one number, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = list[tuple[str, torch.dtype]]()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if args and isinstance(args[0], torch.Tensor) and args[0].numel() == 1:
            self.calls.append((function.overloadpacket.__name__, args[0].dtype))
        return function(*args, **(kwargs or {}))

    def before(self, name: str) -> set[tuple[str, torch.dtype]]:
        return {*self.calls[: [called for called, _ in self.calls].index(name)]}


@pytest.fixture
def called() -> Iterator[Called]:
    with Called() as calls:
        yield calls


def test_before_the_file_of_a_job_is_loaded(called, tmp_path):
    Path(tmp_path, "computing.py").write_text(COMPUTING, encoding="utf-8")
    load_job(f"{tmp_path}/computing.py:job")
    assert called.before("frac") >= KNOWN_CALLS


def test_before_a_model_is_made(called):
    def model():
        torch.zeros(1).frac()
        return torch.nn.Linear(4, 3)

    with prepare(small_job(model=model)):
        assert called.before("frac") >= KNOWN_CALLS
