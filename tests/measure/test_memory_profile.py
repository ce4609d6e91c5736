from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils.checkpoint import checkpoint

from hasten.measure.memory_profile import Kind, profile_memory

FLOAT = 4
ROWS = 256


class Chain(nn.Module):
    """Linear layers with a rectifier after each: `width` features everywhere."""

    def __init__(self, width: int, layers: int, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU()) for _ in range(layers)
        )
        self.checkpointed = checkpointed

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = checkpoint(layer, rows, use_reentrant=False) if self.checkpointed else layer(rows)
        return rows


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor, microbatches: int = 1):
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for part in rows.chunk(microbatches):
            model(part).sum().backward()
        optimizer.step()

    return step


def parameter_bytes(model: nn.Module) -> int:
    return FLOAT * sum(parameter.numel() for parameter in model.parameters())


def test_a_small_network_is_counted_to_the_byte_when_the_update_is_the_peak():
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    profile = profile_memory(step_of(model, optimizer, torch.randn(1, 64)), model, [optimizer])
    held = parameter_bytes(model)
    assert profile.by_kind[Kind.PARAMETERS] == held
    assert profile.by_kind[Kind.GRADIENTS] == held
    steps_taken = FLOAT * len(list(model.parameters()))
    assert profile.by_kind[Kind.OPTIMIZER_STATE] == 2 * held + steps_taken
    assert profile.by_kind[Kind.INPUTS] == FLOAT * 64
    assert profile.by_kind[Kind.ACTIVATIONS] == 0
    assert sum(profile.by_kind.values()) == profile.peak_bytes


def test_the_activations_of_a_chain_are_its_outputs_by_module():
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 32), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profile = profile_memory(step_of(model, optimizer, torch.randn(ROWS, 16)), model, [optimizer])
    held = profile.by_module
    # Tanh keeps its output, a linear layer its input; a linear layer's output before Tanh is kept by nobody.
    assert held["1"] == FLOAT * ROWS * 16
    assert held["3"] == FLOAT * ROWS * 32
    assert not {"0", "2"} & held.keys()
    assert [*held.values()] == sorted(held.values(), reverse=True)
    assert sum(held.values()) == profile.by_kind[Kind.ACTIVATIONS]


def test_buffers_and_a_batch_made_inside_the_step_are_named():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        rows = torch.ones(ROWS, 8) * 2
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    profile = profile_memory(step, model, [optimizer])
    assert profile.by_kind[Kind.BUFFERS] == 2 * 8 * FLOAT + 8
    assert profile.by_kind[Kind.INPUTS] == FLOAT * ROWS * 8


def test_a_checkpointed_model_holds_fewer_activations():
    peaks = {}
    for checkpointed in (False, True):
        model = Chain(16, 6, checkpointed=checkpointed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        peaks[checkpointed] = profile_memory(step_of(model, optimizer, torch.randn(ROWS, 16)), model, [optimizer])
    # Without: 4 tensors a block, but nobody keeps the last. With: one a block, and one block's four.
    assert peaks[False].by_kind[Kind.ACTIVATIONS] >= FLOAT * ROWS * 16 * (4 * 6 - 2)
    assert peaks[True].by_kind[Kind.ACTIVATIONS] <= FLOAT * ROWS * 16 * (6 + 4 + 1)
    # What a block computes again counts too, and by its name; the peak falls into the last block but one.
    again = peaks[True].by_module
    assert [again[f"layers.4.{part}"] for part in range(3)] == [FLOAT * ROWS * 16] * 3


def test_no_hook_and_no_mode_is_left_behind_even_when_the_step_raises():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []

    def step() -> None:
        model(torch.randn(2, 4)).sum().backward()
        calls.append(len(module_hooks._global_forward_hooks))
        if len(calls) == 2:
            raise RuntimeError("in the observed step")

    with pytest.raises(RuntimeError, match="in the observed step"):
        profile_memory(step, model, [optimizer])
    assert calls[1] == calls[0] + 1  # the hooks were there while it ran
    assert len(module_hooks._global_forward_hooks) == calls[0]
    assert not module_hooks._global_forward_pre_hooks
    assert not model._forward_pre_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.gpu
def test_the_peak_is_what_the_device_reports_up_to_rounding():
    small = Chain(8, 1).cuda()  # the first products allocate the workspaces of cuBLAS, forward and backward
    step_of(small, torch.optim.AdamW(small.parameters()), torch.randn(8, 8, device="cuda"))()
    before = torch.cuda.memory_allocated()
    model = Chain(512, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    step = step_of(model, optimizer, torch.randn(4096, 512, device="cuda"))
    profile = profile_memory(step, model, [optimizer])
    torch.cuda.reset_peak_memory_stats()
    step()
    assert profile.peak_bytes == pytest.approx(torch.cuda.max_memory_allocated() - before, rel=0.1)
