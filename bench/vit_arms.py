"""The arms of the vision transformer's benchmark: ViT-S/16 on pictures of 224 pixels, by a plan.

    python -m bench.vit_arms '{"precision": "bf16"}'     # prints the bytes that three steps have held at most

The pictures are random numbers: neither time nor memory depends on what they show.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from bench.windows import windows_of
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.training.peak_memory import peak_memory

BATCH, PIXELS, PATCH, CLASSES = 16, 224, 16, 1000
WIDTH, LAYERS, HEADS = 384, 12, 6  # ViT-S: Dosovitskiy et al. 2020, arXiv:2010.11929; Touvron et al., arXiv:2012.12877
STEPS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, stream: Tensor) -> Tensor:
        projected = self.query_key_value(self.attention_norm(stream)).unflatten(-1, (3, HEADS, -1))
        attended = functional.scaled_dot_product_attention(*projected.permute(2, 0, 3, 1, 4))
        stream = stream + self.mix(attended.transpose(1, 2).flatten(2))
        return stream + self.perceptron(self.norm(stream))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        patches = (PIXELS // PATCH) ** 2
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.first, self.places = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.randn(patches + 1, WIDTH) / 50)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

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
    """choices: of a plan, by technique: a value, or a value and its options."""
    given = {name: (value[0], value[1]) if isinstance(value, list) else value for name, value in choices.items()}
    return windows_of(hasten.prepare(job(), hasten.make_plan(**given)))


if __name__ == "__main__":
    arm(json.loads(sys.argv[1]))(STEPS)
    print(peak_memory(torch.device("cpu"))())
