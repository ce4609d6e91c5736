"""A newcomer can follow a batch, and the preparation of a run, through few files of hasten."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import hasten

PACKAGE = str(Path(hasten.__file__).parent)
SAMPLES, FEATURES, BATCH = 44, 37, 8  # no other tensor of the job has as many columns, but for the first layer's


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((FEATURES,), float(index)), index % 3


def columns() -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, FEATURES), torch.arange(SAMPLES) % 3


def job(train: Any, optimizer: Callable[[Any], torch.optim.Optimizer]) -> hasten.Job:
    def perceptron() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 3))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    return hasten.Job(
        model=perceptron, loss=loss, optimizer=optimizer, train=train, batch_size=BATCH, epochs=1, log_every=1000
    )


def holds(value: Any) -> bool:
    """Whether it is the batch or one of its samples, or a tuple or list that contains it."""
    if isinstance(value, Tensor):
        return value.shape in ((FEATURES,), (BATCH, FEATURES))
    return isinstance(value, tuple | list) and any(map(holds, value))


@contextmanager
def watching(see: Callable[[FrameType, str, Any], bool]) -> Iterator[set[str]]:
    """The files of hasten with a function in which `see` saw something, when it was entered or left."""
    found = set[str]()

    def hook(frame: FrameType, event: str, returned: Any) -> None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) and code.co_name != "<module>" and see(frame, event, returned):
            found.add(code.co_filename)

    sys.setprofile(hook)
    try:
        yield found
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("data", [columns, Rows])
def test_a_batch_crosses_at_most_twelve_files_from_the_data_set_to_the_optimizer(data):
    """Files with a function that takes or returns the batch, and those on the way to optimizer.step."""
    stack = set[str]()

    class Seeing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            frame: FrameType | None = sys._getframe()
            while frame is not None:
                stack.add(frame.f_code.co_filename)
                frame = frame.f_back
            super().step(closure)

    def see(frame: FrameType, event: str, returned: Any) -> bool:
        if event == "return":
            return holds(returned)
        return event == "call" and any(map(holds, frame.f_locals.values()))

    with hasten.prepare(job(data(), lambda params: Seeing(params, lr=0.1))) as run:
        batches = run.batches()
        run.step(next(batches))
        stack.clear()
        with watching(see) as found:
            run.step(next(batches))
    crossed = found | {each for each in stack if each.startswith(PACKAGE)}
    assert {"step.py", "window.py", "training_data.py"} <= {Path(each).name for each in crossed}
    assert len(crossed) <= 12, "\n".join(sorted(crossed))


def test_preparing_a_perceptron_runs_code_of_at_most_thirty_files():
    made = [job(columns(), lambda params: torch.optim.SGD(params, lr=0.1)) for _ in range(2)]
    hasten.prepare(made[0]).close()  # loads all modules
    with watching(lambda frame, event, returned: event == "call") as found:
        run = hasten.prepare(made[1])
    run.close()
    assert {"build.py", "prepared_job.py"} <= {Path(each).name for each in found}
    assert len(found) <= 30, "\n".join(sorted(found))
