"""The arms of the vision transformer's benchmark: ViT-S/16 on pictures of 224 pixels, by a plan.

    python -m bench.vit_arms '{"precision": "bf16"}'     # prints the bytes that three steps have held at most

The pictures are random numbers: neither time nor memory depends on what they show.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from bench.windows import windows_of
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.facts.plan import Plan
from hasten.training.probes.peak_memory import peak_memory

BATCH, PIXELS, CLASSES = 16, 224, 1000
STEPS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """patch: pixels of a side."""

    width: int
    layers: int
    heads: int
    patch: int


# Dosovitskiy et al. 2020, arXiv:2010.11929, table 1; Touvron et al. 2020, arXiv:2012.12877, for the small one.
SMALL = Size(width=384, layers=12, heads=6, patch=16)
HUGE = Size(width=1280, layers=32, heads=16, patch=14)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: Tensor) -> Tensor:
        projected = self.query_key_value(self.attention_norm(stream)).unflatten(-1, (3, self.heads, -1))
        attended = functional.scaled_dot_product_attention(*projected.permute(2, 0, 3, 1, 4))
        stream = stream + self.mix(attended.transpose(1, 2).flatten(2))
        return stream + self.perceptron(self.norm(stream))


class ViT(nn.Module):
    def __init__(self, size: Size = SMALL) -> None:
        super().__init__()
        width, patches = size.width, (PIXELS // size.patch) ** 2
        self.patches = nn.Conv2d(3, width, size.patch, size.patch)
        self.first, self.places = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.randn(patches + 1, width) / 50)
        self.blocks = nn.Sequential(*(Block(width, size.heads) for _ in range(size.layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        stream = self.patches(images).flatten(2).transpose(1, 2)
        stream = torch.cat([self.first.expand(len(images), 1, -1).to(stream.dtype), stream], dim=1) + self.places
        return self.head(self.norm(self.blocks(stream))[:, 0])


def job() -> hasten.Job:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4 * BATCH, 3, PIXELS, PIXELS, generator=generator)
    return hasten.Job(
        model=ViT,
        loss=hasten.supervised(functional.cross_entropy),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        train=(images, torch.randint(0, CLASSES, (len(images),), generator=generator)),
        batch_size=BATCH,
        max_steps=10**9,
        clip_norm=1.0,
    )


def arm(choices: Mapping[str, Any]) -> Callable[[int], None]:
    """choices: as plan_of takes them."""
    return windows_of(hasten.prepare(job(), plan_of(choices)))


def plan_of(choices: Mapping[str, Any]) -> Plan:
    """choices: by technique, as JSON carries them: a value, or a list of a value and its options."""
    given = {name: (value[0], value[1]) if isinstance(value, list) else value for name, value in choices.items()}
    return hasten.make_plan(**given)


if __name__ == "__main__":
    arm(json.loads(sys.argv[1]))(STEPS)
    print(peak_memory(torch.device("cpu"))())
