"""A window that did not end well leaves buffers as it found them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hasten
from hasten.training.state.declared_state import DeclaredState
from hasten.training.state.window_snapshot import SMALL_BYTES, WindowSnapshot
from support import small_job
from support.training.resumed_state import losses

LARGE = SMALL_BYTES // 4 + 1  # of float32


class Holder(nn.Module):
    def __init__(self, held: Tensor) -> None:
        super().__init__()
        self.register_buffer("held", held)


def start_of(model: nn.Module, windows: int = 1) -> WindowSnapshot:
    return WindowSnapshot(model, DeclaredState({}), windows)


@pytest.mark.parametrize("window", [1, 3])
def test_a_small_buffer_is_restored(window):
    model = Holder(torch.zeros(3))
    start = start_of(model)
    for step in range(1, window + 1):
        start.mark(step)
        model.held += 1
    assert start.back(window)
    assert model.held.tolist() == [window - 1] * 3


def test_a_large_buffer_is_restored_from_the_window_behind_its_first_change_on():
    model = Holder(torch.zeros(LARGE))
    start = start_of(model)
    start.mark(1)
    model.held += 1
    assert not start.back(1)
    start.mark(2)
    model.held += 1
    assert start.back(2)
    assert model.held[0] == 1


@pytest.mark.parametrize(("value", "healed"), [(torch.inf, [0, 0]), (1.0, [1, 2])])
def test_buffers_are_healed_where_one_became_infinite(value, healed):
    model = nn.ModuleList([Holder(torch.zeros(1)), Holder(torch.zeros(1)), Holder(torch.eye(2).to_sparse())])
    start = start_of(model)
    start.mark(1)
    model[0].held.fill_(value)
    model[1].held.fill_(2)
    start.heal(1)
    assert [each.held.item() for each in model[:2]] == healed


def test_an_exception_in_a_window_leaves_the_run_as_the_step_before_did():
    network = lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))  # noqa: E731
    fails = list[int]()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        found = nn.functional.cross_entropy(model(batch[0]), batch[1])
        fails.append(1)
        if len(fails) == 4:
            raise ValueError("planted")
        return found

    with hasten.prepare(small_job(model=network)) as whole:
        wanted = losses(whole)
    with hasten.prepare(small_job(model=network, loss=loss)) as run:
        run.keep_window_starts()
        with pytest.raises(ValueError, match="planted"):
            losses(run)
        assert run.built.windows.restore()
        assert losses(run) == wanted[3:]
