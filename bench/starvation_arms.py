"""The arms of the starvation benchmark: ResNet-18 trained on JPEG files, fed by hasten or by torch's DataLoader.

Equal in every arm: the pictures, random crops of 160 × 160, batches of 32, the network, bfloat16 and channels last,
SGD with momentum. Only what feeds it differs. hasten's own counter says how long a training waited for data; the plain
loop around the DataLoader counts in the same way, from asking for a batch until it is on the device.

Each window adds a line to a file of notes: which arm, its seconds, and how many of them it waited.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hasten
from bench import loading_arms
from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan, PlannedChoice

SIZE, BATCH, CLASSES = 160, 32, 10
WIDTHS = (64, 128, 256, 512)
IN_MEMORY = 64  # samples of the arm that reads no files

Window = Callable[[int], None]


# ── the network ─────────────────────────────────────────────────────────────────────────────────────────────────────


def resnet_18() -> nn.Module:
    """As for ImageNet, with ten classes (He et al., "Deep residual learning for image recognition", 2015)."""
    torch.manual_seed(0)
    stem = nn.Sequential(_convolution(3, 64, 2, 7), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks: list[nn.Module] = []
    for inputs, outputs in zip((64, *WIDTHS), WIDTHS, strict=False):
        blocks += [Block(inputs, outputs, 1 if inputs == outputs else 2), Block(outputs, outputs, 1)]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], CLASSES))


class Block(nn.Module):
    """Two convolutions and the way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _convolution(inputs, outputs, stride), _convolution(outputs, outputs, 1)
        self.around = nn.Identity() if inputs == outputs else _convolution(inputs, outputs, stride, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(pictures))) + self.around(pictures))


def _convolution(inputs: int, outputs: int, stride: int, kernel: int = 3) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


# ── what feeds it ───────────────────────────────────────────────────────────────────────────────────────────────────


def from_memory(notes: str, folder: str) -> Window:
    """A few samples that are tensors already: what the training does when it need not wait."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(IN_MEMORY, 3, SIZE, SIZE, generator=generator)
    labels = torch.randint(CLASSES, (IN_MEMORY,), generator=generator)
    return _trained_by_hasten(notes, "from memory", (pixels, labels), 0)


def from_hasten(notes: str, folder: str, threads: int) -> Window:
    pictures = hasten.ImageFolder(folder, hasten.RandomResizedCrop(SIZE))
    return _trained_by_hasten(notes, "hasten", pictures, threads)


def from_dataloader(notes: str, folder: str, workers: int) -> Window:
    """A plain loop."""
    device = loading_arms.here()
    model = resnet_18().to(device).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = sgd(model.parameters())
    epoch = loading_arms.dataloader(folder, BATCH, workers, SIZE)
    batches = _one_after_another(epoch)

    def window(steps: int) -> float:
        waited = 0.0
        for _ in range(steps):
            asked = time.perf_counter()
            pixels, labels = next(batches)
            pixels = pixels.contiguous(memory_format=torch.channels_last)
            waited += time.perf_counter() - asked
            with torch.autocast(device.type, torch.bfloat16):
                loss = loss_of(model, (pixels, labels))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return waited

    return partial(_noted, notes, f"DataLoader, {workers} workers", window)


def _one_after_another(epoch: Callable[[], Any]) -> Iterator[Any]:
    while True:
        yield from epoch()


def _trained_by_hasten(notes: str, arm: str, train: Any, threads: int) -> Window:
    job = hasten.Job(model=resnet_18, loss=loss_of, optimizer=sgd, train=train, batch_size=BATCH, max_steps=10**9)
    run = hasten.prepare(job, Plan(choices=tuple(PlannedChoice(choice=choice) for choice in _choices(threads))))
    batches = run.batches()

    def window(steps: int) -> float:
        before = run.built.batches.wait_seconds
        for _ in range(steps):
            run.step(next(batches))
        return run.built.batches.wait_seconds - before

    return partial(_noted, notes, arm, window)


def _choices(threads: int) -> Iterator[Choice]:
    yield Choice(technique="precision", value="bf16", preserves=Preserves.STATISTICS)
    yield Choice(technique="channels_last", value=True, preserves=Preserves.ROUNDING)
    if threads:
        yield Choice(technique="loader_workers", value=threads, preserves=Preserves.BITS, options={"kind": "threads"})


def _noted(notes: str, arm: str, window: Callable[[int], float], steps: int) -> None:
    begin = time.perf_counter()
    waited = window(steps)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    line = {"arm": arm, "seconds": time.perf_counter() - begin, "waited_seconds": waited}
    with Path(notes).open("a", encoding="utf-8") as file:
        print(json.dumps(line), file=file)
