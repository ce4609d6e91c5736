"""Text and rows, trained by scripts as many are written; the one of pictures is examples/naive.py.

    python -m bench.pipeline_naive rows --seed 3

One loop trains both: float32, a DataLoader without workers that puts samples together one by one, Adam at a constant
rate, numbers taken from the device and printed at every step, evaluations with gradients in batches of the training's
size, and as many steps as were planned. Models and data are those of bench/pipeline_jobs.py.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from bench.child import load
from bench.pipeline_jobs import EXAMPLES, rows, text
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hasten


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """windows: uint8 [N, length + 1]. Of each its bytes, and those that follow them."""

    def __init__(self, windows: Tensor) -> None:
        self.texts = [bytes(window.tolist()) for window in windows]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = torch.tensor(list(self.texts[index]))
        return window[:-1], window[1:]


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What the loop is given. loss: (logits, targets) -> the mean."""

    job: hasten.Job
    train: Dataset[Any]
    valid: Dataset[Any]
    loss: Callable[[Tensor, Tensor], Tensor]


def text_script() -> Script:
    job = text()
    return Script(
        job=job,
        train=Windows(job.train[0]),
        valid=Windows(job.valid[0]),
        loss=lambda logits, targets: nn.CrossEntropyLoss()(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)),
    )


def rows_script() -> Script:
    job = rows()
    return Script(job=job, train=TensorDataset(*job.train), valid=TensorDataset(*job.valid), loss=nn.CrossEntropyLoss())


SCRIPTS = {"text": text_script, "rows": rows_script}


def photos_script() -> Mapping[str, Any]:
    """The names of examples/naive.py, which imports what lies beside it."""
    sys.path.append(str(EXAMPLES))
    return load(f"{EXAMPLES}/naive.py:main").__globals__  # pyright: ignore[reportFunctionMemberAccess]


def optimizer_of(script: Script, model: nn.Module) -> torch.optim.Optimizer:
    optimizer = script.job.optimizer(model.parameters())
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def train_on(script: Script, model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
    """On all that there are."""
    optimizer = optimizer_of(script, model)
    for step, (inputs, targets) in enumerate(batches):
        optimizer.zero_grad()
        logits = model(inputs)
        loss = script.loss(logits, targets)
        loss.backward()
        if script.job.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), script.job.clip_norm)
        optimizer.step()
        accuracy = (logits.argmax(-1) == targets).float().mean()
        print(f"step {step + 1}: loss {loss.item():.6f}, accuracy {accuracy.item():.4f}")


def evaluated(script: Script, model: nn.Module) -> tuple[float, float]:
    """Loss and accuracy over the valid data."""
    model.eval()
    total, correct, count = 0.0, 0, 0
    for inputs, targets in DataLoader(script.valid, batch_size=script.job.batch_size):
        logits = model(inputs)
        total += script.loss(logits, targets).item() * targets.numel()
        correct += (logits.argmax(-1) == targets).sum().item()
        count += targets.numel()
    model.train()
    return total / count, correct / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("script", choices=list(SCRIPTS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    np.random.seed(options.seed)
    torch.manual_seed(options.seed)
    script = SCRIPTS[options.script]()
    model = script.job.model()
    # The first optimizer would load it: the seconds of hasten are without imports, too.
    importlib.import_module("torch._dynamo")
    begin = time.time()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        """As many as the job plans, with its evaluations between them."""
        loader = DataLoader(script.train, batch_size=script.job.batch_size, shuffle=True)
        steps = script.job.max_steps or (script.job.epochs or 0) * len(loader)
        every, taken = script.job.evaluate_every or len(loader), 0
        while taken < steps:
            for batch in loader:
                yield batch
                taken += 1
                if taken % every == 0 or taken == steps:
                    loss, accuracy = evaluated(script, model)
                    print(
                        f"valid loss {loss:.6f}, valid accuracy {accuracy:.4f}, {time.time() - begin:.3f} s", flush=True
                    )
                if taken == steps:
                    return

    train_on(script, model, batches())


if __name__ == "__main__":
    main()
