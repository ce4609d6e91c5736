"""Jobs of which one function raises or gives something wrong; see wrong_functions.py, and wrong_data_jobs.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, lr_scheduler

import hasten
from support.faults.wrong_data_jobs import Samples
from support.faults.wrong_functions import (
    JOBS,
    LABELS,
    RAISES,
    RETURNS,
    ROWS,
    enrolled,
    job,
    returning,
)

# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Model(nn.Linear):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__(6, 3)
        HELD[id(self)] = forward

    def forward(self, rows: Tensor) -> Any:
        return HELD[id(self)](rows @ self.weight.T + self.bias)


HELD: dict[int, Callable[..., Any]] = {}

enrolled("model", lambda wrong: {"model": wrong}, lambda: nn.Linear(6, 3), 0, RAISES | RETURNS)
enrolled(
    "forward",
    lambda wrong: {"model": lambda: Model(wrong), "loss": hasten.supervised(functional.cross_entropy)},
    lambda output: output,
    3,
    RAISES
    | RETURNS
    | {
        "returns_a_tuple": lambda output: (output, None),
        "returns_a_dictionary": lambda output: {"logits": output},
        "returns_another_shape": lambda output: output[:, :, None, None],
        "returns_too_few": lambda output: output[:1],
        "returns_whole_numbers": lambda output: output.long(),
        "returns_something_detached": lambda output: output.detach(),
        "returns_a_complex_tensor": lambda output: output + 1j,
    },
)

# ── the loss ────────────────────────────────────────────────────────────────────────────────────────────────────────


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def summed(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


LOSSES: dict[str, Callable[..., Any]] = {
    "returns_a_number": lambda model, batch: cross_entropy(model, batch).item(),
    "returns_a_tuple": lambda model, batch: (cross_entropy(model, batch), 8),
    "returns_a_vector": lambda model, batch: model(batch[0]).sum(1),
    "returns_something_detached": lambda model, batch: cross_entropy(model, batch).detach(),
    "returns_a_complex_number": lambda model, batch: cross_entropy(model, batch) * (1 + 1j),
    "returns_a_whole_number": lambda model, batch: cross_entropy(model, batch).long(),
    "returns_another_tensor": lambda model, batch: torch.zeros((), requires_grad=True) * 1.0,
    "returns_no_count": lambda model, batch: hasten.Loss(summed(model, batch), None),  # type: ignore[arg-type]
    "returns_a_total_that_is_a_number": lambda model, batch: hasten.Loss(summed(model, batch).item(), 8),  # type: ignore[arg-type]
    "returns_a_total_that_is_a_vector": lambda model, batch: hasten.Loss(model(batch[0]).sum(1), 8),
    "returns_an_auxiliary_vector": lambda model, batch: hasten.Loss(summed(model, batch), 8, model(batch[0]).sum(1)),
    "returns_auxiliary_text": lambda model, batch: hasten.Loss(summed(model, batch), 8, "text"),  # type: ignore[arg-type]
}
enrolled("loss", lambda wrong: {"loss": wrong}, cross_entropy, 3, RAISES | RETURNS | LOSSES)
USABLE = ("returns_something_detached", "returns_another_tensor", "returns_a_whole_number")
in_evaluations = {name: wrong for name, wrong in LOSSES.items() if name not in USABLE}
enrolled("eval_loss", lambda wrong: {"eval_loss": wrong}, cross_entropy, 3, RAISES | RETURNS | in_evaluations)

# ── parameters, optimizer and schedule ──────────────────────────────────────────────────────────────────────────────

enrolled(
    "parameters",
    lambda wrong: {"parameters": wrong},
    lambda model: model.parameters(),
    0,
    RAISES
    | RETURNS
    | {
        "returns_lists_of_lists": lambda model: [[*model.parameters()]],
        "returns_texts": lambda model: [name for name, _ in model.named_parameters()],
        "returns_a_tensor": lambda model: model.weight,
        "returns_modules": lambda model: [model],
        "returns_numbers": lambda model: [1, 2],
        "returns_a_dictionary": lambda model: dict(model.named_parameters()),
        "returns_groups_without_params": lambda model: [{"lr": 0.1}],
        "returns_groups_with_a_rate_of_text": lambda model: [{"params": model.parameters(), "lr": "0.1"}],
        "returns_copies": lambda model: [each.clone() for each in model.parameters()],
    },
)


class Stepping(SGD):
    """An optimizer of one's own."""

    def __init__(self, params: Any, before: Callable[[], Any]) -> None:
        super().__init__(params, lr=0.1)
        self.before = before

    def step(self, closure: Any = None) -> Any:
        self.before()
        return super().step(closure)


enrolled(
    "optimizer",
    lambda wrong: {"optimizer": wrong},
    lambda params: SGD(params, lr=0.1),
    0,
    RAISES
    | RETURNS
    | {
        "returns_a_list_of_none": returning([None]),
        "returns_an_optimizer_of_others": lambda params: SGD([torch.zeros(1, requires_grad=True)], lr=0.1),
        "returns_two_that_share": lambda params: [SGD(params, lr=0.1), SGD(params, lr=0.1)],
        "has_a_rate_of_nan": lambda params: SGD(params, lr=math.nan),
        "has_a_negative_rate": lambda params: SGD(params, lr=-0.1),
        "is_capturable": lambda params: torch.optim.Adam(params, capturable=True),
        "is_differentiable": lambda params: torch.optim.Adam(params, differentiable=True),
        "needs_a_closure": lambda params: torch.optim.LBFGS(params),
        "returns_a_scheduler": lambda params: lr_scheduler.ConstantLR(SGD(params, lr=0.1)),
    },
)
enrolled("step", lambda wrong: {"optimizer": partial(Stepping, before=wrong)}, lambda: None, 3, RAISES)


class Moving(lr_scheduler.LRScheduler):
    """A schedule of one's own."""

    def __init__(self, optimizer: Any, rate: Callable[[], Any]) -> None:
        self.rate = rate
        super().__init__(optimizer)

    def get_lr(self) -> Any:
        return [self.rate() for _ in self.base_lrs]


def constant(optimizer: Any) -> Any:
    return lr_scheduler.ConstantLR(optimizer, 1.0)


def nested(optimizer: Any) -> Any:
    inner = lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer, 1.0), lr_scheduler.ExponentialLR(optimizer, 0.9)], [4]
    )
    return lr_scheduler.SequentialLR(optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), inner], [4])


def by_step(build: Callable[..., Any]) -> dict[str, Any]:
    return {"schedule": hasten.Schedule(build, unit="step")}


enrolled(
    "schedule",
    by_step,
    constant,
    0,
    {
        **{name: lambda optimizer, wrong=wrong: wrong() for name, wrong in (RAISES | RETURNS).items()},
        "returns_an_optimizer": lambda optimizer: optimizer,
        "returns_a_schedule_of_another": lambda optimizer: lr_scheduler.ConstantLR(SGD([torch.zeros(1)], 0.1)),
        "is_nested": nested,
        "has_steps_of_no_size": lambda optimizer: lr_scheduler.StepLR(optimizer, 0),
        "has_a_period_of_nothing": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 0),
        "has_another_length": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5),
    },
)
enrolled(
    "rate",
    lambda wrong: by_step(lambda optimizer: lr_scheduler.LambdaLR(optimizer, wrong)),
    lambda step: 1.0,
    3,
    RAISES
    | RETURNS
    | {
        "returns_a_negative_number": returning(-1.0),
        "returns_a_vector": returning(torch.ones(2)),
    },
)
enrolled(
    "own_rate",
    lambda wrong: by_step(lambda optimizer: Moving(optimizer, wrong)),
    lambda: 0.1,
    3,
    RAISES | {"returns_none": returning(None), "returns_text": returning("0.1")},
)

# ── metrics and receivers ───────────────────────────────────────────────────────────────────────────────────────────


class Metric:
    def __init__(self, **methods: Callable[..., Any]) -> None:
        self.methods = {"update": lambda *_: None, "compute": lambda: 1.0, "reset": lambda: None} | methods

    def update(self, prediction: Any, target: Any) -> Any:
        return self.methods["update"](prediction, target)

    def compute(self) -> Any:
        return self.methods["compute"]()

    def reset(self) -> Any:
        return self.methods["reset"]()

    def __deepcopy__(self, memo: Any) -> Metric:
        return self


def measured(method: str, wrong: Callable[..., Any]) -> dict[str, Any]:
    loss = hasten.supervised(functional.cross_entropy)
    return {"loss": loss, "metrics": {"mine": Metric(**{method: wrong})}}


NO_NUMBERS = {
    "returns_a_vector": returning(torch.ones(3)),
    "returns_a_complex_number": returning(torch.tensor(1j)),
    "returns_a_dictionary": returning({"mine": 1.0}),
}
enrolled("update", partial(measured, "update"), lambda *_: None, 5, RAISES)
enrolled("compute", partial(measured, "compute"), lambda: 1.0, 1, RAISES | RETURNS | NO_NUMBERS)
enrolled("reset", partial(measured, "reset"), lambda: None, 1, RAISES)

# ── what no function of the user raises ─────────────────────────────────────────────────────────────────────────────


def gradients_off(model: nn.Module, batch: Any) -> Tensor:
    torch.set_grad_enabled(False)
    return cross_entropy(model, batch)


def gradients_off_after(model: nn.Module, batch: Any) -> Tensor:
    loss = cross_entropy(model, batch)
    torch.set_grad_enabled(False)
    return loss


class InPlace(torch.autograd.Function):
    """Its backward pass gives too little."""

    @staticmethod
    def forward(context: Any, given: Tensor) -> Tensor:  # type: ignore[override]
        return given * 2

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient[:1], gradient


def changed_in_place(model: nn.Module, batch: Any) -> Tensor:
    output = model(batch[0]).sigmoid()
    result = output.square().mean()
    output.add_(1)
    return result


TORCHS: dict[str, dict[str, Any]] = {
    "changed_in_place": {"loss": changed_in_place},
    "gradients_off": {"loss": gradients_off},
    "gradients_off_after": {"loss": gradients_off_after},
    "capturable_by_a_partial": {"optimizer": partial(torch.optim.Adam, capturable=True)},
    "no_rate_by_a_partial": {"optimizer": partial(SGD, lr="0.1")},
    "collate_by_stack": {
        "train": Samples(lambda index: torch.zeros(5 + index % 2)),
        "collate": torch.stack,
    },
    "sigmoid_by_a_partial": {"loss": hasten.supervised(functional.binary_cross_entropy)},
    "other_sizes": {"model": partial(nn.Linear, 7, 3)},
    "too_few_classes": {"model": partial(nn.Linear, 6, 1)},
    "labels_of_float": {"train": (ROWS, LABELS.float())},
    "steps_of_no_size_by_a_partial": by_step(lambda optimizer: lr_scheduler.StepLR(optimizer, 0)),
    "backward_of_a_wrong_shape": {"loss": lambda model, batch: InPlace.apply(model(batch[0])).mean()},
    "other_dtypes": {"train": (ROWS.double(), LABELS)},
    "other_dtypes_of_a_model": {"model": lambda: nn.Linear(6, 3).double()},
    "frozen": {"model": lambda: nn.Linear(6, 3).requires_grad_(False)},
    "complex_parameters": {"model": lambda: nn.Linear(6, 3, dtype=torch.complex64)},
    "uninitialised": {"model": lambda: nn.LazyLinear(3)},
    "batch_norm_of_one": {"model": lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), "batch_size": 13},
    "device_mps": {"device": "mps"},
    "device_meta": {"device": "meta"},
    "device_unknown": {"device": "gpu"},
    "metric_named_by_a_number": {"loss": hasten.supervised(functional.cross_entropy), "metrics": {1: Metric()}},
}
for torchs, changes in TORCHS.items():
    JOBS[f"torch_{torchs}"] = lambda changes=changes: job(**changes)


def __getattr__(name: str) -> Callable[[], hasten.Job]:
    """By which the command line finds a job of the table."""
    if name in JOBS:
        return JOBS[name]
    raise AttributeError(name)
