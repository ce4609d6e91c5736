"""The jobs that calibrate the judge of losses: one that is right, and the same with one harm planted in it.

The right one is a small perceptron that predicts the next byte of the standard library's own sources from the eight
before it (Bengio et al. 2003, Journal of Machine Learning Research 3:1137–1155): real text, seconds a run, and a loss
that two seeds agree on to half a per cent, which a few hundred digits never do. Everything that a harm needs in order
to hurt is in it: two layers of dropout, clipping that acts, plain SGD (Adam's update forgets how gradients are scaled),
and samples that lie in the order of the text, module by module.

A harm that lives in the step is planted where the step is made, and so in every run of the process: each of these
functions belongs in a process of its own.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import OneCycleLR

import hasten
from hasten.techniques.setup import StepOptions
from hasten.training.step import Step
from hasten.training.step_parts.window import WindowSums

CONTEXT, BYTES, WIDTH = 8, 256, 128
TRAIN, VALID = 24_000, 6_000  # windows
STRIDE = 50  # bytes between two windows
RATE = 0.35  # a little beyond the best one: what is no harm to a rate that is too low would be a gain
PARTS = 4  # that the planned arms split a batch into, where a harm needs accumulation
Windows = tuple[Tensor, Tensor]


def text_windows(modules: list[Path], count: int) -> Windows:
    """int64 [count, CONTEXT] bytes and [count] the byte after each, in the order of the text."""
    text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in modules)), dtype=torch.uint8)
    windows = text.unfold(0, CONTEXT + 1, STRIDE)[:count].long()
    return windows[:, :-1].contiguous(), windows[:, -1].contiguous()


def perceptron(dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(BYTES, 16),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(16 * CONTEXT, WIDTH),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(WIDTH, BYTES),
    )


def job(
    rate: float = RATE, dropout: float = 0.1, kept: float = 1.0, shuffle: bool = True, clip_norm: float = 2.0
) -> hasten.Job:
    """kept: the share of the training data that is there; the last part of the text is missing."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    valid = text_windows(modules[9::10], VALID)  # held out whole
    del modules[9::10]
    train = tuple(part[: int(kept * TRAIN)] for part in text_windows(modules, TRAIN))
    return hasten.Job(
        model=partial(perceptron, dropout),
        loss=hasten.supervised(functional.cross_entropy),
        optimizer=lambda params: torch.optim.SGD(params, lr=rate, momentum=0.9),
        schedule=lambda optimizer, total_steps: OneCycleLR(optimizer, max_lr=rate, total_steps=total_steps),
        train=train,
        valid=valid,
        batch_size=64,
        epochs=1,
        clip_norm=clip_norm,
        shuffle=shuffle,
        seed=0,
    )


# ── the planted harms ───────────────────────────────────────────────────────────────────────────────────────────────


def rate_times_1_3() -> hasten.Job:
    return job(rate=1.3 * RATE)


def a_tenth_of_the_data_dropped() -> hasten.Job:
    return job(kept=0.9)


def shuffle_off() -> hasten.Job:
    return job(shuffle=False)


def dropout_lost() -> hasten.Job:
    return job(dropout=0.0)


def accumulation_not_divided() -> hasten.Job:
    """The gradients of a window's parts are added up, each as if it were the whole."""
    divide = WindowSums.divide_gradients

    def not_divided(self: WindowSums, parameters: Sequence[Tensor], reference: float) -> None:
        divide(self, parameters, reference * PARTS)

    WindowSums.divide_gradients = not_divided
    return job()


def clip_before_unscale() -> hasten.Job:
    """The norm is bounded while the gradients are still multiplied by the loss scale."""
    unscale = Step._unscale

    def clipped_first(self: Step, scaler: torch.amp.GradScaler) -> None:
        assert self._options.clip_norm is not None
        clip_grad_norm_(self.parameters, self._options.clip_norm)
        unscale(self, scaler)

    Step._unscale = clipped_first
    return loss_scaled()


# ── and what is no harm ─────────────────────────────────────────────────────────────────────────────────────────────


def loss_scaled() -> hasten.Job:
    """Loss scaling as it should be, in float32, where a power of two changes no bit."""
    make = Step.__init__

    def scaling(
        self: Step, model: nn.Module, loss: Any, optimizers: Any, options: StepOptions | None = None, **others: Any
    ) -> None:
        options = options or StepOptions()
        options.scale_gradients = True
        make(self, model, loss, optimizers, options, **others)

    Step.__init__ = scaling
    return job()
