"""channels_last changes strides only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hasten.facts.choice import Preserves
from hasten.techniques.channels_last import TECHNIQUE, to_channels_last
from hasten.techniques.contract import No, Yes
from support import setup_of


def small_network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))


@pytest.mark.trap(34)
def test_the_state_dict_keeps_its_keys_order_shapes_and_values():
    model = small_network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = to_channels_last(model).state_dict()
    assert list(after) == list(before)
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name])


def test_outputs_and_gradients_are_equal_up_to_rounding():
    batch = torch.randn(5, 3, 8, 8)
    torch.manual_seed(1)
    plain = small_network()
    torch.manual_seed(1)
    changed = to_channels_last(small_network())
    expected, got = plain(batch), changed(batch.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected)
    expected.square().sum().backward()
    got.square().sum().backward()
    for one, other in zip(changed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_convolution_weights_have_channels_innermost():
    setup = setup_of(small_network(), torch.randn(2, 3, 8, 8))
    (choice,) = TECHNIQUE.candidates(setup)
    TECHNIQUE.apply(setup, choice)
    assert setup.model.get_parameter("0.weight").stride(1) == 1
    assert setup.step.memory_format is torch.channels_last
    assert choice.preserves is Preserves.ROUNDING


def test_it_applies_to_two_dimensional_convolutions_only():
    image = setup_of(small_network(), torch.randn(2, 3, 8, 8))
    sound = setup_of(nn.Sequential(nn.Conv1d(3, 4, 3), nn.Linear(6, 2)), torch.randn(2, 3, 8))
    assert TECHNIQUE.applies(image) == Yes()
    assert TECHNIQUE.applies(sound) == No("the model has no two-dimensional convolution")


def test_a_model_in_channels_last_is_not_converted_again():
    setup = setup_of(to_channels_last(small_network()), torch.randn(2, 3, 8, 8))
    assert TECHNIQUE.applies(setup) == No("the model is in channels-last already")
