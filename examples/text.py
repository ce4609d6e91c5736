"""A small GPT that learns to write Python, byte by byte, from the standard library's own sources.

    hasten train examples/text.py:job
    HASTEN_TEXT=book.txt hasten train examples/text.py:job     # any other text file

The text is every module on the top level of the standard library: about 4.7 MB. Every tenth module is held out whole,
so that no half of a file is judged by the other half. Of a single file, the last tenth is held out.

In its 300 steps it comes to a loss of about 2.08 nats a byte on the modules that were held out: from 2.00 to 2.15 over
eight seeds.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR
from torchmetrics.classification import MulticlassAccuracy

import hasten

BYTES = 256


def read_text() -> tuple[bytes, bytes]:
    """The text to learn from and the text to be judged by."""
    if chosen := os.environ.get("HASTEN_TEXT"):
        text = Path(chosen).expanduser().read_bytes()
        return text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    modules = [path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    held_out = modules[9::10]
    del modules[9::10]
    return b"".join(modules), b"".join(held_out)


def windows(text: bytes, context: int) -> Tensor:
    """uint8 [windows, context + 1]: a window's last byte is the next one's first, so every byte is predicted once."""
    if len(text) <= context:
        raise ValueError(f"{len(text)} bytes of text do not fill one window of {context + 1}: choose a longer text")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, context + 1, context)


class Block(nn.Module):
    """Causal attention, then a two-layer perceptron; each reads a normalised copy and adds to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, stream: Tensor) -> Tensor:
        projected = self.query_key_value(self.attention_norm(stream))
        query, key, value = projected.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.mix(attended.transpose(1, 2).flatten(2))
        return stream + self.perceptron(stream)


class GPT(nn.Module):
    """int64 [batch, length] -> logits of each next byte [batch, length, 256]; length is at most `context`."""

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, BYTES, bias=False))

    def forward(self, text: Tensor) -> Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        return self.head(self.blocks(self.bytes(text) + self.positions(positions)))


def next_byte_loss(model: nn.Module, batch: tuple[Tensor]) -> hasten.Loss:
    (text,) = batch
    text = text.long()
    logits, target = model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()
    total = functional.cross_entropy(logits, target, reduction="sum")
    return hasten.Loss(total, target.numel(), prediction=logits, target=target)


def decay_only_matrices(model: nn.Module) -> Iterator[dict[str, object]]:
    """Two groups for the optimizer: weight decay is for what multiplies, not for biases and norms."""
    yield {"params": [parameter for parameter in model.parameters() if parameter.dim() > 1]}
    yield {"params": [parameter for parameter in model.parameters() if parameter.dim() < 2], "weight_decay": 0.0}


def job(width: int = 384, layers: int = 3, context: int = 128, steps: int = 300) -> hasten.Job:
    train, valid = read_text()
    return hasten.Job(
        model=lambda: GPT(width, layers, heads=width // 128, context=context),
        loss=next_byte_loss,
        parameters=decay_only_matrices,
        optimizer=lambda params: torch.optim.AdamW(params, lr=2e-3, weight_decay=0.1),
        schedule=lambda optimizer, total_steps: OneCycleLR(optimizer, max_lr=2e-3, total_steps=total_steps),
        train=(windows(train, context),),
        valid=(windows(valid, context)[::8],),
        batch_size=16,
        max_steps=steps,
        evaluate_every=100,
        metrics={"accuracy": MulticlassAccuracy(BYTES, average="micro")},
        clip_norm=1.0,
        seed=0,
    )


def small_job() -> hasten.Job:
    """Seconds instead of minutes: for trying things out."""
    return job(width=128, layers=2, context=64, steps=300)
