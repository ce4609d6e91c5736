"""The arms of the overhead benchmark: one tiny job, trained by a plain loop, by hasten and by its peers.

Equal in every arm: the model and its initial weights, the batches and their order, SGD with momentum, the loss read and
written down every 50 steps. The work of a step is so small that what remains is what the trainer itself costs.

The data set reads a whole batch at once, as a slice, so that the loader costs little. A step begins where the model is
called, which every trainer does once a step; that is where the benchmark counts (bench/stepwise.py).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import torch
from bench.stepwise import stepwise
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FEATURES, WIDTH, CLASSES = 64, 128, 10
BATCH, ROWS = 32, 32 * 256
STEPS = 10_000_000  # in one epoch: no benchmark sees its end
LOG_EVERY = 50
RATE, MOMENTUM = 0.01, 0.9

Tick = Callable[[], None]
Batch = tuple[Tensor, Tensor]


class Rows(Dataset[Any]):
    """Random rows and labels, repeated, so that an epoch outlasts every benchmark."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self._rows = torch.randn(ROWS, FEATURES, generator=generator)
        self._labels = torch.randint(CLASSES, (ROWS,), generator=generator)

    @property
    def columns(self) -> Batch:
        """All rows and labels, once."""
        return self._rows, self._labels

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> Batch:
        return self._rows[index % ROWS], self._labels[index % ROWS]

    def __getitems__(self, indices: list[int]) -> Any:
        """A whole batch; the order is that of the rows, so it is one slice."""
        start = indices[0] % ROWS
        return self._rows[start : start + BATCH], self._labels[start : start + BATCH]


class Network(nn.Module):
    """Three layers; its call is the beginning of a step."""

    def __init__(self, tick: Tick) -> None:
        super().__init__()
        torch.manual_seed(0)
        self._tick = tick
        self.layers = nn.Sequential(
            *(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
        )

    def forward(self, rows: Tensor) -> Tensor:
        self._tick()
        return self.layers(rows)


def as_it_is(batch: Any) -> Any:
    return batch


def loader() -> DataLoader[Any]:
    return DataLoader(Rows(), batch_size=BATCH, collate_fn=as_it_is)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)


def here() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def write_down(step: int, loss: float) -> None:
    """Add a loss to a file, as a line."""
    with open("losses.jsonl", "a", encoding="utf-8") as file:
        print(json.dumps({"step": step, "loss": loss}), file=file)


# ── a plain loop ────────────────────────────────────────────────────────────────────────────────────────────────────


def plain() -> Callable[[int], None]:
    def train(tick: Tick) -> None:
        device = here()
        model = Network(tick).to(device)
        optimizer = sgd(model.parameters())
        for step, (rows, labels) in enumerate(loader(), start=1):
            rows, labels = rows.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(rows), labels)
            loss.backward()
            optimizer.step()
            if step % LOG_EVERY == 0:
                write_down(step, loss.item())

    return stepwise(train)


# ── hasten ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def hasten_train() -> Callable[[int], None]:
    """The whole engine: its own loader over the same rows, and its log in a run directory.

    The rows are given as tensors, which is how a job has rows in memory; an epoch ends every 256 steps.
    """
    import hasten

    rows = Rows()

    def train(tick: Tick) -> None:
        job = hasten.Job(
            model=lambda: Network(tick),
            loss=loss_of,
            optimizer=sgd,
            train=rows.columns,
            batch_size=BATCH,
            shuffle=False,
            max_steps=STEPS,
            log_every=LOG_EVERY,
        )
        hasten.train(job, run_dir="run", receivers=[])

    return stepwise(train)


def hasten_step() -> Callable[[int], None]:
    """hasten.Step alone, in a loop of one's own over torch's loader."""
    import hasten

    def train(tick: Tick) -> None:
        device = here()
        model = Network(tick).to(device)
        step = hasten.Step(model, loss_of, [sgd(model.parameters())])
        for number, (rows, labels) in enumerate(loader(), start=1):
            loss = step.accumulate((rows.to(device), labels.to(device)), BATCH)
            step.update()
            if number % LOG_EVERY == 0:
                step.losses.drain()
                write_down(number, loss.item())

    return stepwise(train)


# ── peers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def lightning_default() -> Callable[[int], None]:
    """As its documentation begins: self.log in training_step, and every setting of the Trainer as it comes."""
    return _lightning(logs_itself=True, max_epochs=1)


def lightning_tuned() -> Callable[[int], None]:
    """barebones=True, its own setting for measuring overhead: no progress bar, checkpoints, summary or logger. It also
    turns self.log off, so the step writes its loss down by hand."""
    return _lightning(logs_itself=False, max_epochs=1, barebones=True)


def _lightning(*, logs_itself: bool, **settings: Any) -> Callable[[int], None]:
    import lightning  # pyright: ignore[reportMissingImports]

    class Module(lightning.LightningModule):
        def __init__(self, tick: Tick) -> None:
            super().__init__()
            self.model = Network(tick)

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            loss = loss_of(self.model, batch)
            if logs_itself:
                self.log("loss", loss)
            elif (batch_idx + 1) % LOG_EVERY == 0:
                write_down(batch_idx + 1, loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.parameters())

    return stepwise(lambda tick: lightning.Trainer(**settings).fit(Module(tick), loader()))


def accelerate_default() -> Callable[[int], None]:
    """As its quick tour has it: model, optimizer and loader are all prepared."""
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]

    def train(tick: Tick) -> None:
        accelerator, model = Accelerator(), Network(tick)
        prepared, optimizer, batches = accelerator.prepare(model, sgd(model.parameters()), loader())
        _accelerated(accelerator, prepared, optimizer, batches)

    return stepwise(train)


def accelerate_tuned() -> Callable[[int], None]:
    """Only model and optimizer are prepared; the loader stays torch's, and batches are placed by hand."""
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]

    def train(tick: Tick) -> None:
        accelerator, model, device = Accelerator(), Network(tick), here()
        placed = ((rows.to(device), labels.to(device)) for rows, labels in loader())
        prepared, optimizer = accelerator.prepare(model, sgd(model.parameters()))
        _accelerated(accelerator, prepared, optimizer, placed)

    return stepwise(train)


def _accelerated(accelerator: Any, model: nn.Module, optimizer: Any, batches: Any) -> None:
    for step, batch in zip(itertools.count(1), batches, strict=False):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        accelerator.backward(loss)
        optimizer.step()
        if step % LOG_EVERY == 0:
            write_down(step, loss.item())
