"""What bench/accelerator.py trains: four models of the kinds that people rent accelerators for.

The data is random numbers that lie on the device, a few batches of them: no time depends on what they are. The trainer
of transformers has them sample by sample on the CPU, as its users do. Every arm of a work takes batches of one size
through the same model, loss and optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from bench.starvation_arms import Block as Residual
from bench.vit_arms import CLASSES, HUGE, PIXELS, ViT
from examples.text import GPT
from torch import Tensor, nn
from torch.nn import functional

import hasten

Columns = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """model: made anew. columns: samples on the CPU, whole batches of them. loss: of a model and a batch of them.
    optimizer: (parameters, fused). clip: the largest norm of all gradients, None for any. unit: what is counted, in the
    plural; units: of them in a sample. convolutional: whether the model takes pictures through convolutions."""

    model: Callable[[], nn.Module]
    columns: Callable[[], Columns]
    loss: Callable[[nn.Module, Sequence[Tensor]], hasten.Loss]
    optimizer: Callable[[Iterable[nn.Parameter], bool], torch.optim.Optimizer]
    batch_size: int
    unit: str
    units: int = 1
    clip: float | None = None
    convolutional: bool = False


# ── models ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 with the stride, 1 × 1, and the way around them (He et al. 2015, arXiv:1512.03385, figure 5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.narrow, self.across = convolution(inputs, width, 1), convolution(width, width, 3, stride)
        self.widen = convolution(width, 4 * width, 1)
        self.around = nn.Identity() if inputs == 4 * width else convolution(inputs, 4 * width, 1, stride)

    def forward(self, pictures: Tensor) -> Tensor:
        inner = torch.relu(self.across(torch.relu(self.narrow(pictures))))
        return torch.relu(self.widen(inner) + self.around(pictures))


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    made = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(outputs))


def resnet_50() -> nn.Module:
    """With its stride in the 3 × 3 convolution, as nearly everybody trains it today."""
    blocks, inputs = list[nn.Module](), 64
    for number, layers in enumerate((3, 4, 6, 3)):
        for layer in range(layers):
            blocks.append(Bottleneck(inputs, 64 << number, 2 if number and not layer else 1))
            inputs = 4 * (64 << number)
    stem = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


class GPT2(GPT):
    """124M parameters (Radford et al. 2019); the logits' weights are the tokens' own. The table has some rows more than
    there are tokens, a multiple of 64 as in most trainings of it: products of an odd width are slow."""

    def __init__(self) -> None:
        super().__init__(width=768, layers=12, heads=12, context=CONTEXT)
        self.bytes = nn.Embedding(TABLE, 768)
        logits = nn.Linear(768, TABLE, bias=False)
        logits.weight = self.bytes.weight
        self.head = nn.Sequential(nn.LayerNorm(768), logits)
        nn.init.normal_(self.bytes.weight, std=0.02)


def small_residual() -> nn.Module:
    """For pictures of 32 × 32."""
    blocks = (Residual(inputs, outputs, 2) for inputs, outputs in ((64, 128), (128, 256), (256, 512)))
    stem = (convolution(3, 64, 3), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


# ── data, losses, optimizers ────────────────────────────────────────────────────────────────────────────────────────

TOKENS, TABLE, CONTEXT = 50_257, 50_304, 1024


def pictures(count: int) -> Columns:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(count, 3, PIXELS, PIXELS, generator=generator)
    return pixels, torch.randint(CLASSES, (count,), generator=generator)


def small_pictures(count: int) -> Columns:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return pixels, torch.randint(10, (count,), generator=generator)


def texts(count: int) -> Columns:
    return (torch.randint(TOKENS, (count, CONTEXT + 1), generator=torch.Generator().manual_seed(0)),)


def small_pictures_loss(model: nn.Module, batch: Sequence[Tensor]) -> hasten.Loss:
    pixels, labels = batch
    total = functional.cross_entropy(model(pixels.float() / 255), labels, reduction="sum")
    return hasten.Loss(total, len(labels))


def next_token_loss(model: nn.Module, batch: Sequence[Tensor]) -> hasten.Loss:
    (text,) = batch
    total = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten(), reduction="sum")
    return hasten.Loss(total, text.shape[0] * CONTEXT)


def adamw(parameters: Iterable[nn.Parameter], fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=fused or None)


def sgd(parameters: Iterable[nn.Parameter], fused: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=fused or None)


supervised = hasten.supervised(functional.cross_entropy)

WORKS = {
    "resnet-50": Work(
        model=resnet_50,
        columns=lambda: pictures(4 * 256),
        loss=supervised,
        optimizer=sgd,
        batch_size=256,
        unit="images",
        convolutional=True,
    ),
    "gpt-2": Work(
        model=GPT2,
        columns=lambda: texts(8 * 16),
        loss=next_token_loss,
        optimizer=adamw,
        batch_size=16,
        unit="tokens",
        units=CONTEXT,
        clip=1.0,
    ),
    "vit-h": Work(
        model=lambda: ViT(HUGE),
        columns=lambda: pictures(4 * 64),
        loss=supervised,
        optimizer=adamw,
        batch_size=64,
        unit="images",
        clip=1.0,
    ),
    "small-pictures": Work(
        model=small_residual,
        columns=lambda: small_pictures(50_176),
        loss=small_pictures_loss,
        optimizer=sgd,
        batch_size=512,
        unit="images",
        convolutional=True,
    ),
}
