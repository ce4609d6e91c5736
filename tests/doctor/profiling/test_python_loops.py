"""Which lines of the user's code are loops around small operations, in functions and layers that they call too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.doctor.profiling.line_times import LineTimes, lines_of_steps
from hasten.doctor.profiling.operation_counts import Operations, is_read
from hasten.doctor.run_rules.step_costs import loops, share_of_loops
from hasten.facts.profiles import RunProfile
from hasten.training.probes.brief_run import brief_run, whole_step
from support.doctor.faulty_model_job import job
from support.doctor.run_profiles import HEALTHY

TURNS = 30
FEATURES = 36


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.second(torch.tanh(self.first(rows)))


class Turning(nn.Module):
    def __init__(self, turn: Callable[[Turning, Tensor], Tensor]) -> None:
        super().__init__()
        self.turn = turn
        self.block, self.layer = Block(), nn.Linear(FEATURES, FEATURES)
        self.blocks = nn.ModuleList(Block() for _ in range(TURNS))
        self.scales = nn.Parameter(torch.ones(TURNS))
        self.weights = nn.ParameterList(torch.eye(FEATURES) for _ in range(TURNS))

    def forward(self, images: Tensor) -> Tensor:
        return self.turn(self, images.flatten(1))[:, :3]


def same_block(model: Turning, rows: Tensor) -> Tensor:
    outs = []
    for one in rows.expand(TURNS, *rows.shape).unbind(0):
        outs.append(model.block(one))
    return torch.stack(outs).mean(0)


def same_layer(model: Turning, rows: Tensor) -> Tensor:
    return torch.stack([model.layer(rows) for _ in range(TURNS)]).mean(0)


def parts_of_rows(model: Turning, rows: Tensor) -> Tensor:
    return sum((model.block(rows[index % 16 :]).sum() for index in range(TURNS)), start=rows)


def recurrent(model: Turning, rows: Tensor) -> Tensor:
    state = rows
    for _ in range(TURNS):
        state = cell(model, rows, state)
    return state


def cell(model: Turning, rows: Tensor, state: Tensor) -> Tensor:
    return torch.tanh(model.layer(rows) + model.block(state))


def column_by_column(model: Turning, rows: Tensor) -> Tensor:
    out = torch.zeros_like(rows)
    for index in range(TURNS):
        out[:, index] = rows[:, index] * model.scales[index]
    return out


def deep_with_a_sum(model: Turning, rows: Tensor) -> Tensor:
    for block in model.blocks:
        rows = rows + functional.dropout(torch.relu(block(rows)), 0.1, model.training)
    return rows


def parameters(model: Turning, rows: Tensor) -> Tensor:
    for weight in model.weights:
        rows = torch.relu(rows @ weight)
    return rows


def few_heads(model: Turning, rows: Tensor) -> Tensor:
    outs = [model.blocks[index](rows) * 2 for index in range(3)]
    return sum(cell(model, each, each) for each in outs)  # pyright: ignore[reportReturnType]


made = list[Callable[[Turning, Tensor], Tensor]]()
for factor in range(2):

    def made_in_a_loop(model: Turning, rows: Tensor, factor: int = factor) -> Tensor:
        return sum([model.layer(rows) * factor] * TURNS, start=rows)

    made.append(made_in_a_loop)


def torchs_own(model: Turning, rows: Tensor) -> Tensor:
    return nn.Sequential(*[model.layer] * TURNS)(rows)


def watched(turn: Callable[[Turning, Tensor], Tensor], *, batches: int = 1) -> RunProfile:
    """A profile of which only operations and traced lines are known."""
    found, times = Operations(autocast=False), LineTimes()
    with brief_run(job(model=lambda: Turning(turn)), None, name="", steps=9) as run:
        step = whole_step(run)
        with found:
            for _ in range(batches):
                found.next_batch()
                step()
        with times:
            for _ in range(batches):
                step()
    return replace(HEALTHY, lines=tuple(lines_of_steps({}, 0.1, found, times)))


@pytest.mark.parametrize("turn", [same_block, same_layer, parts_of_rows, recurrent, column_by_column])
def test_a_loop_is_charged_for_what_it_calls_of_the_users_again_and_again(turn):
    found = watched(turn)
    (line,) = [line for line in loops(found) if line.function == turn.__name__]
    assert line.turns is not None
    assert line.turns.passes >= TURNS
    assert line.turns.timed > 0
    assert line.turns.operations >= sum(each.operations for each in found.lines if each.function == "Block.forward")
    assert 0.5 < share_of_loops(found, loops(found)) <= 1


@pytest.mark.parametrize("turn", [deep_with_a_sum, few_heads, torchs_own, parameters, made[0]])
def test_layers_that_are_called_once_each_are_no_loop_however_many(turn):
    assert loops(watched(turn)) == []


def test_layers_of_many_batches_in_a_step_are_no_loop_either():
    assert loops(watched(parameters, batches=9)) == []


def test_copies_under_the_users_own_autocast_are_not_the_users():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = functional.linear(batch[0].flatten(1), weight)
        return functional.cross_entropy(out.float() + model(batch[0]), batch[1])

    weight = torch.ones(3, FEATURES, requires_grad=True)
    with brief_run(job(loss), None, name="", steps=3) as run, Operations(autocast=False) as found:
        whole_step(run)()
    first = loss.__code__.co_firstlineno
    copies = {place.line - first: tally.copies for place, tally in found.lines.items() if place.function == "loss"}
    assert (copies[2], copies[3]) == (0, 1)


def test_a_tensor_of_a_device_that_is_copied_to_the_host_is_a_read():
    there, here = torch.ones(2, device="meta"), torch.ones(2)
    assert is_read("aten::_to_copy", [there], here)
    assert is_read("aten::copy_", [here, there], here)
    assert is_read("aten::nonzero", [there], there)
    assert not is_read("aten::_to_copy", [here], there)
    assert not is_read("aten::_to_copy", [here], here)
    assert not is_read("aten::nonzero", [here], here)
