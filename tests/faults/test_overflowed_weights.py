"""A finite gradient times a rate can overflow a weight: that is told as what it is, and never saved."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.checkpoint.store import Store
from hasten.entry import prepare, train
from hasten.errors import NonFinite
from hasten.facts.saving import Saving
from support import small_job

pytestmark = pytest.mark.fault("NaN/Inf loss, gradient, norm")

BAD_STEP = 3


def plain(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


class Spare(nn.Module):
    """One part of it is moved by the optimizer, and never used to compute with; another is infinite on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(6, 3), nn.Parameter(torch.zeros(3))
        self.mask = nn.Parameter(torch.full((3,), -math.inf))

    def forward(self, rows: Tensor) -> Tensor:
        return self.used(rows)


def overflowing_job(part: str, **changes: Any) -> Any:
    """At its third step an update by finite gradients makes that parameter infinite."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        steps.append(0)
        moved = model.get_parameter(part).sum() * 1e30 if len(steps) == BAD_STEP else 0.0
        return plain(model, batch) * 1e-10 + moved

    steps: list[int] = []
    optimizer = lambda params: torch.optim.SGD(params, lr=1e9)  # noqa: E731
    return small_job(**({"model": Spare, "loss": loss, "optimizer": optimizer} | changes))


def test_a_weight_that_an_update_has_overflowed_is_not_called_unharmed():
    with prepare(overflowing_job("used.bias")) as run, pytest.raises(NonFinite) as refusal:
        for batch in run.batches():
            run.step(batch)
    assert refusal.value.where.startswith(f"optimizer step {BAD_STEP + 1} ")
    assert refusal.value.what == (
        "the loss is nan, and a gradient of used.weight is not finite, and the weight used.bias is not: "
        "an earlier update overflowed it; "
        "this update was not applied"
    )


@pytest.mark.parametrize("saving", [Saving(every_steps=1), Saving(every_steps=100)], ids=str)
def test_weights_that_are_not_finite_are_never_saved(saving, tmp_path):
    with pytest.raises(NonFinite, match="spare is not finite, although every gradient was") as refusal:
        train(overflowing_job("spare"), receivers=[], run_dir=tmp_path / "run", saving=saving)
    assert refusal.value.exit_code == 13
    assert not (tmp_path / "run" / "model.safetensors").exists()
    found = Store(tmp_path / "run" / "checkpoints").found()
    assert all(each.step < BAD_STEP for each in found)
    assert bool(found) == (saving.every_steps != 100)


def test_weights_that_are_not_finite_are_no_result_either():
    with pytest.raises(NonFinite, match="spare is not finite, although every gradient was"):
        train(overflowing_job("spare"), receivers=[])


def test_a_loss_that_an_overflowed_weight_has_spoilt_is_told_with_the_weight():
    spoilt = overflowing_job("spare").loss
    job = overflowing_job("spare", loss=lambda model, batch: spoilt(model, batch) + model.spare.detach().sum() * 0)
    with pytest.raises(NonFinite, match="spare is not finite, although every gradient was"):
        train(job, receivers=[])
