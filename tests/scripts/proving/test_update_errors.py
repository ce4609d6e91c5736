"""Updates of a script's arms are judged by what they change, from each arm's own first weights."""

from __future__ import annotations

import torch

from hasten.measure.gradient_error import judge_updates
from hasten.scripts.proving.script_prover import update_errors


def updated(first: torch.Tensor, rate: float) -> list[dict[str, torch.Tensor]]:
    """Weights before the first of three updates, and after each."""
    gradient = torch.linspace(-1, 1, first.numel(), dtype=first.dtype).reshape(first.shape)
    return [{"weight": first - step * rate * gradient} for step in range(4)]


def test_first_weights_that_are_rounded_otherwise_are_no_other_update():
    first = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    other = first * (1 + 4 * torch.finfo(torch.float32).eps)
    truth = updated(first.double(), 0.01)
    plain = update_errors(updated(first, 0.01), truth)
    assert judge_updates(plain, update_errors(updated(other, 0.01), truth)).passes
    assert not judge_updates(plain, update_errors(updated(other, 0.0101), truth)).passes
