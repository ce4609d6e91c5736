"""What a step that loss scaling skips leaves: what became infinite in it is taken back, of whatever kind it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from window_starts import Holder, start_of

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]
KINDS = {
    **{str(dtype): lambda dtype=dtype: torch.ones(3).to(dtype) for dtype in FLOAT8},
    "float4": lambda: torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8),
    "complex32": lambda: torch.zeros(3, dtype=torch.complex32),
    "conjugated": lambda: torch.zeros(3, dtype=torch.complex64).conj(),
    "meta": lambda: torch.zeros(3, device="meta"),
    "sparse": lambda: (torch.eye(3) * torch.inf).to_sparse(),
    "compressed": lambda: (torch.eye(3) * torch.inf).to_sparse_csr(),
    "whole": lambda: torch.zeros(3, dtype=torch.uint16),
    "bool": lambda: torch.zeros(3, dtype=torch.bool),
}


def overflow(module: Any) -> None:
    module.held.fill_(torch.inf)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Sparse", "ignore:ComplexHalf", "ignore:.*quantize")
def test_a_skipped_step_is_healed_beside_a_buffer_of_any_kind(kind):
    model = nn.ModuleList([Holder(KINDS[kind](), overflow), Holder(torch.zeros(2), overflow)])
    start = start_of(model)
    start.mark(1)
    model[1]()
    start.heal(1)
    assert model[1].held.tolist() == [0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3).to(torch.float8_e5m2),
        lambda: torch.ones(3, dtype=torch.complex64).conj(),
        lambda: torch.ones(3, dtype=torch.bfloat16),
        lambda: torch.eye(3).to_sparse(),
    ],
    ids=["float8", "conjugated", "bfloat16", "sparse"],
)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_an_infinity_is_found_in_a_buffer_of_any_kind_that_can_hold_one(make):
    wanted = dense(make())
    model = Holder(make(), None)
    start = start_of(model)
    start.mark(1)
    if model.held.is_sparse:
        model.held._values().fill_(torch.inf)
    elif model.held.dtype is torch.float8_e5m2:
        model.held.copy_(torch.full((3,), torch.inf).to(torch.float8_e5m2))
    else:
        model.held.fill_(torch.inf)
    start.heal(1)
    assert torch.equal(dense(model.held), wanted)


def dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor.to(torch.complex64).resolve_conj()


def test_a_centre_that_the_loss_keeps_as_a_parameter_is_healed():
    held = nn.Module()
    held.centre = nn.Parameter(torch.zeros(3), requires_grad=False)
    start = start_of(nn.Linear(1, 1), loss=lambda: held)
    for step in range(1, 5):
        start.mark(step)
        held.centre.data.add_(1)
    start.mark(5)
    held.centre.data.fill_(torch.inf)
    start.heal(5)
    assert held.centre.tolist() == [4, 4, 4]


class Counted(list[int]):
    """How often somebody has asked for its length."""

    asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return super().__len__()


@pytest.mark.parametrize("scaled", [False, True])
def test_what_modules_remember_is_looked_at_only_where_a_step_may_be_healed(scaled):
    model = Holder(torch.zeros(2), None)
    model.lengths = Counted()
    start = start_of(model, scaled=scaled)
    begun = model.lengths.asked
    for step in range(1, 4):
        start.mark(step)
    assert model.lengths.asked - begun == (3 if scaled else 0)
