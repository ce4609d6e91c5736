"""Models of a few hundred numbers, their batches, and the gradient of a step as a job takes it."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from hasten.facts.job import Loss

BATCH = 8


class Words(nn.Module):
    """Embedding, layer norm, one output; the mean over seven positions."""

    def __init__(self, sparse=False):
        super().__init__()
        self.embedding = nn.Embedding(20, 6, sparse=sparse)
        self.norm = nn.LayerNorm(6)
        self.output = nn.Linear(6, 1)

    def forward(self, x):
        return self.output(self.norm(self.embedding(x)).mean(1))


def mlp():
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))


def convolutional():
    """With biases before batch norm: their true gradient is zero, and what a job computes there is noise alone."""
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))


MODELS = {"mlp": (mlp, 1), "words": (Words, 7), "convolutional": (convolutional, 49)}  # and positions per sample


def batch_for(kind, generator):
    target = torch.randn(BATCH, 1, generator=generator)
    if kind == "words":
        return torch.randint(0, 20, (BATCH, 7), generator=generator), target
    return torch.randn(BATCH, *((5,) if kind == "mlp" else (3, 9, 9)), generator=generator), target


def squared_error(model, batch):
    x, y = batch
    return Loss(F.mse_loss(model(x), y, reduction="sum"), len(x))


def gradients(model, batch, *, microbatch=BATCH, loss=squared_error, factor=1.0):
    """Of one step as a job runs it: totals summed over microbatches, divided once. The model given is left alone."""
    model = copy.deepcopy(model)
    for part in zip(*(each.split(microbatch) for each in batch), strict=True):
        loss(model, part).total.backward()
    found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return {name: each * (factor / BATCH) for name, each in found.items()}


def start(kind, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MODELS[kind][0]()
