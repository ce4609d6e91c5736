"""Losses kept on the device: read together, weighted by their items, and never made prettier."""

import math

import pytest
import torch

from hasten.facts.ranks import ALONE
from hasten.training.step_parts.losses import LossRecord, WindowLoss, mean_loss


def test_windows_are_read_once_and_in_their_order():
    record = LossRecord(torch.device("cpu"), ALONE)
    for mean, count in ((1.0, 4), (2.0, torch.tensor(6)), (4.0, 2.5)):
        record.append(torch.tensor(mean), count)
    assert len(record) == 3
    assert record.drain() == [WindowLoss(1.0, 4.0), WindowLoss(2.0, 6.0), WindowLoss(4.0, 2.5)]
    assert record.drain() == []


def test_a_mean_over_windows_is_weighted_by_their_items():
    assert mean_loss([WindowLoss(1.0, 3), WindowLoss(5.0, 1)]) == pytest.approx(2.0)
    assert mean_loss([WindowLoss(1.0, 3), WindowLoss(0.0, 0)]) == pytest.approx(1.0)


@pytest.mark.trap(51)
def test_a_nan_among_windows_makes_their_mean_nan():
    assert math.isnan(mean_loss([WindowLoss(1.0, 3), WindowLoss(math.nan, 1), WindowLoss(2.0, 3)]))
    assert math.isnan(mean_loss([]))
