"""The arms of bench/accelerator.py: a plain loop, transformers' trainer as it comes, and hasten by a plan.

An arm takes its first steps while it is built: what compiles, does so there. After each window it adds a line to a file
of notes: the most bytes that it has held on the device, and the seconds in which it waited for its batches.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench.accelerator_works import WORKS, Columns, Work
from bench.stepwise import stepwise
from bench.vit_arms import PIXELS, plan_of
from bench.windows import windows_of
from torch import Tensor, nn

import hasten

FIRST_STEPS = 3
Window = Callable[[int], object]


def here() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def by_hand(work: str, notes: str, name: str, batch_size: int, tuned: bool) -> Window:
    """A plain loop. Not tuned, it computes in float32 to the last bit; tuned, with all that a careful hand knows of:
    TF32, bfloat16, the layout for convolutions, a fused optimizer, cuDNN's search and torch.compile."""
    chosen, device = WORKS[work], here()
    torch.backends.cuda.matmul.allow_tf32 = tuned
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = tuned
    torch.manual_seed(0)
    layout = torch.channels_last if tuned and chosen.convolutional else torch.preserve_format
    model = chosen.model().to(device).to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    optimizer = chosen.optimizer(model.parameters(), tuned)
    called: Any = torch.compile(model) if tuned else model
    batches, waited = _drawn(tuple(column.to(device) for column in chosen.columns()), batch_size), 0.0

    def window(steps: int) -> None:
        nonlocal waited
        for _ in range(steps):
            began = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - began
            if tuned and chosen.convolutional:
                batch = [batch[0].contiguous(memory_format=torch.channels_last), *batch[1:]]
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=tuned):
                found = chosen.loss(called, batch)
            (found.total / found.count).backward()
            if chosen.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), chosen.clip)
            optimizer.step()

    return _noted(window, notes, name, lambda: waited)


def _drawn(columns: Columns, size: int) -> Iterator[list[Tensor]]:
    """In another order each time, drawn and gathered on the device."""
    while True:
        for chosen in torch.randperm(len(columns[0]), device=columns[0].device).split(size):
            yield [column.index_select(0, chosen) for column in columns]


def by_hasten(
    work: str, notes: str, name: str, batch_size: int, choices: Mapping[str, Any], folder: str | None = None
) -> Window:
    """choices: as plan_of takes them. folder: of pictures to read instead."""
    chosen, device = WORKS[work], here()
    if folder is None:
        train: Any = tuple(column.to(device) for column in chosen.columns())
    else:
        train = hasten.ImageFolder(folder, hasten.RandomResizedCrop(PIXELS))
    job = hasten.Job(
        model=chosen.model,
        loss=chosen.loss,
        optimizer=lambda parameters: chosen.optimizer(parameters, False),
        train=train,
        batch_size=batch_size,
        max_steps=10**9,
        clip_norm=chosen.clip,
        seed=0,
    )
    run = hasten.prepare(job, plan_of(choices))
    return _noted(windows_of(run), notes, name, lambda: run.built.batches.wait_seconds)


def by_transformers(work: str, notes: str, name: str, batch_size: int) -> Window:
    """Its trainer with its own settings, but for those that say what is trained."""
    return _noted(stepwise(partial(_trained_by_transformers, WORKS[work], batch_size)), notes, name)


def _trained_by_transformers(work: Work, batch_size: int, tick: Callable[[], None]) -> None:
    from transformers import Trainer, TrainingArguments  # pyright: ignore[reportMissingImports]

    class Model(nn.Module):
        """Takes its batch by names, and gives its loss, as a model of transformers does."""

        def __init__(self) -> None:
            super().__init__()
            self.model = work.model()

        def forward(self, text: Tensor) -> dict[str, Tensor]:
            tick()
            found = work.loss(self.model, (text,))
            return {"loss": found.total / found.count}

    (texts,) = work.columns()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=batch_size, max_steps=10**9, label_names=[]
        )
        samples: Any = [{"text": text} for text in texts]
        Trainer(model=Model(), args=arguments, train_dataset=samples).train()


def _noted(window: Window, notes: str, name: str, waited: Callable[[], float] | None = None) -> Window:
    """waited: seconds until now; None where the loop is a library's, and nobody could ask."""
    window(FIRST_STEPS)

    def noted(steps: int) -> None:
        before = waited() if waited is not None else 0.0
        window(steps)
        _settled()
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        waiting = waited() - before if waited is not None else None
        line = {"arm": name, "steps": steps, "peak_bytes": peak, "waited_seconds": waiting}
        with Path(notes).open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)

    return noted


def _settled() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def read_notes(path: Path) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The lines of each arm, its warm-up's first."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        found.setdefault(line["arm"], []).append(line)
    return dict(found)
