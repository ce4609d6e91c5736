"""What a watcher keeps of a loss."""

from __future__ import annotations

import pytest
import torch

from hasten.scripts.observing.loss_value import loss_value


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_of_a_loss_on_a_cpu_the_value_is_kept(shape):
    kept = loss_value(torch.full(shape, 0.1, requires_grad=True) * 3)
    assert kept == (torch.full((), 0.1) * 3).item()
    assert type(kept) is float


def test_of_several_losses_the_mean_is_kept():
    assert loss_value(torch.tensor([1.0, 2.0, 6.0])) == 3.0


def test_on_another_device_the_tensor_is_kept_without_its_graph():
    kept = loss_value(torch.ones((), device="meta", requires_grad=True) * 2)
    assert isinstance(kept, torch.Tensor)
    assert not kept.requires_grad
