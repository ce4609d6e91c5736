"""Every kind of torch scheduler and optimizer, and torch's own loop over them, for tests of schedules."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torch_schedulers

from hasten.training.schedule.rate_schedule import build_schedule
from support import small_job

TOTAL = 24
VALID = (torch.zeros(2, 6), torch.zeros(2))


class HalvesWhenTold(torch_schedulers.LRScheduler):
    """A user's own scheduler, written as torch documents it."""

    def get_lr(self):
        return [base * 0.5 ** (self.last_epoch // 5) for base in self.base_lrs]


class Countdown:
    """A user's own scheduler that has nothing of torch's."""

    def __init__(self, optimizer):
        self.optimizer, self.left = optimizer, TOTAL

    def step(self):
        self.left -= 1
        self.optimizer.param_groups[0]["lr"] = 0.1 * self.left / TOTAL

    def state_dict(self):
        return {"left": self.left}

    def load_state_dict(self, state):
        self.left = state["left"]


class Inverse:
    """A callable object, whose state torch keeps in the scheduler's."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1 / (1 + self.calls)


def warm_then_cosine(optimizer):
    warm = torch_schedulers.LinearLR(optimizer, 0.1, total_iters=5)
    cosine = torch_schedulers.CosineAnnealingLR(optimizer, TOTAL - 5)
    return torch_schedulers.SequentialLR(optimizer, [warm, cosine], [5])


def chained(optimizer):
    parts = [torch_schedulers.ConstantLR(optimizer, 0.3, total_iters=4), torch_schedulers.ExponentialLR(optimizer, 0.9)]
    return torch_schedulers.ChainedScheduler(parts, optimizer)


SCHEDULERS = {
    "StepLR": partial(torch_schedulers.StepLR, step_size=7, gamma=0.3),
    "MultiStepLR": partial(torch_schedulers.MultiStepLR, milestones=[3, 9, 9, 15], gamma=0.5),
    "ExponentialLR": partial(torch_schedulers.ExponentialLR, gamma=0.93),
    "CosineAnnealingLR": partial(torch_schedulers.CosineAnnealingLR, T_max=TOTAL, eta_min=1e-4),
    "CosineAnnealingWarmRestarts": partial(torch_schedulers.CosineAnnealingWarmRestarts, T_0=5, T_mult=2),
    "PolynomialLR": partial(torch_schedulers.PolynomialLR, total_iters=TOTAL, power=2.0),
    "LinearLR": partial(torch_schedulers.LinearLR, start_factor=0.2, total_iters=9),
    "ConstantLR": partial(torch_schedulers.ConstantLR, factor=0.25, total_iters=6),
    "LambdaLR": partial(torch_schedulers.LambdaLR, lr_lambda=lambda step: 0.97**step),
    "MultiplicativeLR": partial(torch_schedulers.MultiplicativeLR, lr_lambda=lambda step: 0.95),
    "CyclicLR": partial(torch_schedulers.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=5),
    "CyclicLR exp_range": partial(
        torch_schedulers.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=4, mode="exp_range", gamma=0.99
    ),
    "OneCycleLR": partial(torch_schedulers.OneCycleLR, max_lr=0.4, total_steps=TOTAL),
    "OneCycleLR three phases": partial(
        torch_schedulers.OneCycleLR, max_lr=0.4, total_steps=TOTAL, three_phase=True, anneal_strategy="linear"
    ),
    "SequentialLR": warm_then_cosine,
    "ChainedScheduler": chained,
    "LambdaLR of an object": lambda optimizer: torch_schedulers.LambdaLR(optimizer, Inverse()),
    "a subclass": HalvesWhenTold,
    "no subclass": Countdown,
}
OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.99)),
    "Adam with a tensor rate": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.1)),
}
each_scheduler = pytest.mark.parametrize("build", SCHEDULERS.values(), ids=SCHEDULERS)
each_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def make_optimizer(make=OPTIMIZERS["SGD"]):
    model = nn.Linear(2, 2)
    optimizer = make([{"params": [model.weight]}, {"params": [model.bias]}])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return optimizer


def scheduled(optimizer, schedule, *, total_steps=TOTAL, total_epochs=TOTAL, override=None, planned_rate=None, **job):
    return build_schedule(
        small_job(schedule=schedule, **job),
        optimizer if isinstance(optimizer, list) else [optimizer],
        total_steps,
        total_epochs,
        override,
        planned_rate=planned_rate,
    )


def present(optimizer):
    """What every group's next update will use."""
    return [(float(g["lr"]), float(g["betas"][0] if "betas" in g else g["momentum"])) for g in optimizer.param_groups]


def torch_loop(make, build, steps=TOTAL):
    optimizer, trace = make_optimizer(make), []
    scheduler = build(optimizer)
    for _ in range(steps):
        trace.append(present(optimizer))
        optimizer.step()
        scheduler.step()
    return trace


def update(optimizer, schedule):
    used = present(optimizer)
    optimizer.step()
    schedule.after_update()
    return used
