"""The short way to a backward pass is torch's own, to the bit and to the error."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from hasten.training.step_parts.torch_ops import backward


class Marked(Tensor):
    """A subclass that sees what torch calls on it."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        cls.seen.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, arguments, named or {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_torch_to_the_bit_and_add_up_as_they_do(dtype: torch.dtype):
    found = []
    for differentiate in (torch.autograd.backward, backward):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)
        for _ in range(2):
            differentiate(model(torch.randn(4, 5, dtype=dtype)).square().mean())
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    "objective",
    [
        lambda weight: weight * 2,  # not a scalar
        lambda weight: weight.sum().detach(),  # without a gradient
    ],
    ids=["a vector", "detached"],
)
def test_what_torch_refuses_is_refused_in_its_words(objective):
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError) as wanted:
        torch.autograd.backward(objective(weight))
    with pytest.raises(RuntimeError) as found:
        backward(objective(weight))
    assert str(found.value) == str(wanted.value)


def test_a_gradient_changed_in_place_does_not_reach_the_next_backward_pass():
    weight = torch.ones(1, requires_grad=True)
    for _ in range(2):
        weight.grad = None
        backward(weight.squeeze())  # a gradient that is handed on as it is
        assert weight.grad is not None
        assert weight.grad.item() == 1.0
        weight.grad.mul_(5)


def test_a_tensor_of_another_kind_is_asked_how_it_wants_to_be_differentiated():
    Marked.seen.clear()
    weight = torch.ones(3, requires_grad=True)
    backward(weight.sum().as_subclass(Marked))
    assert "backward" in Marked.seen
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0, 1.0, 1.0]
