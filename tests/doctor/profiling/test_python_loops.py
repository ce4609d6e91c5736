"""What a loop in the user's code begins: in functions and layers that it calls, and in the backward pass."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.doctor.profiling.line_times import LineTimes, lines_of_steps
from hasten.doctor.profiling.operation_counts import Operations, is_read
from hasten.doctor.profiling.run_profiler import profile_run
from hasten.doctor.registry import found_in_run
from hasten.doctor.run_rules.step_costs import loops, share_of_loops
from hasten.facts.profiles import LoopCost, RunProfile
from hasten.report.terminal.profile_text import run_lines
from hasten.training.probes.brief_run import brief_run, whole_step
from support.doctor.faulty_model_job import job
from support.doctor.run_profiles import HEALTHY, LINE, four_times

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
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(TURNS))
        self.weights = nn.ParameterList(torch.eye(FEATURES) for _ in range(TURNS))
        self.recurrent = nn.ModuleList(nn.GRU(FEATURES, FEATURES) for _ in range(2))

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


def nested(model: Turning, rows: Tensor) -> Tensor:
    for _ in range(TURNS):
        rows = scaled(model, rows)
    return rows


def scaled(model: Turning, rows: Tensor) -> Tensor:
    for scale in model.scales.unbind():
        rows = rows * scale
    return rows


def deep(model: Turning, rows: Tensor) -> Tensor:
    for block in model.blocks:
        rows = block(rows)
    return rows


def deep_with_a_sum(model: Turning, rows: Tensor) -> Tensor:
    for block in model.blocks:
        rows = rows + torch.relu(block(rows))
    return rows


def residual_layers(model: Turning, rows: Tensor) -> Tensor:
    for layer in model.layers:
        rows = rows + functional.dropout(torch.relu(layer(rows)), 0.1, model.training)
    return rows


def parameters(model: Turning, rows: Tensor) -> Tensor:
    for weight in model.weights:
        rows = torch.relu(rows @ weight)
    return rows


def recurrent_layers(model: Turning, rows: Tensor) -> Tensor:
    steps = rows.expand(TURNS, *rows.shape)
    for layer in model.recurrent:
        steps, _ = layer(steps)
    return steps[-1]


def few_heads(model: Turning, rows: Tensor) -> Tensor:
    outs = [model.blocks[index](rows) * 2 for index in range(3)]
    return sum(cell(model, each, each) for each in outs)  # pyright: ignore[reportReturnType]


def until_done(model: Turning, rows: Tensor) -> Tensor:
    turned = iter(range(TURNS))
    rows = model.layer(rows)
    while (rows := rows * 1.01 + 0.01) is not None and next(turned, None) is not None:
        pass
    return rows


def of_children(model: Turning, rows: Tensor) -> Tensor:
    return Node(Node(None))(model.layer(rows))


class Node(nn.Module):
    def __init__(self, child: Node | None) -> None:
        super().__init__()
        self.child = child

    def forward(self, rows: Tensor) -> Tensor:
        if self.child is None:
            return torch.tanh(rows) * 2
        for _ in range(TURNS):
            rows = self.child(rows)
        return rows


made = list[Callable[[Turning, Tensor], Tensor]]()
for factor in range(2):

    def made_in_a_loop(model: Turning, rows: Tensor, factor: int = factor) -> Tensor:
        return sum([model.layer(rows) * factor] * TURNS, start=rows)

    made.append(made_in_a_loop)


def torchs_own(model: Turning, rows: Tensor) -> Tensor:
    return nn.Sequential(*[model.layer] * TURNS)(rows)


def watched(turn: Callable[[Turning, Tensor], Tensor], *, batches: int = 1) -> RunProfile:
    """What operations alone tell of it."""
    with (
        brief_run(job(model=lambda: Turning(turn)), None, name="", steps=9) as run,
        Operations(autocast=False) as found,
    ):
        for _ in range(batches):
            found.next_batch()
            whole_step(run)()
    return replace(HEALTHY, lines=tuple(lines_of_steps({}, 0.1, found, LineTimes())))


@pytest.mark.parametrize("turn", [same_block, same_layer, parts_of_rows, recurrent, nested])
def test_a_loop_answers_for_what_it_calls_of_the_users_again_and_again(turn):
    look = watched(turn)
    (line,) = [line for line in loops(look) if line.function == turn.__name__]
    assert line.turns is not None
    assert line.turns.times >= TURNS
    assert line.turns.operations >= sum(each.operations for each in look.lines if each.function == "Block.forward")
    assert line.turns.backward > 0.5
    assert share_of_loops(look) <= 1


@pytest.mark.parametrize(("turn", "function"), [(until_done, "until_done"), (of_children, "Node.forward")])
def test_the_test_of_a_while_is_in_its_loop_and_so_is_a_function_that_calls_one_of_its_name(turn, function):
    assert function in {line.function for line in loops(watched(turn))}


def test_a_function_that_a_loop_has_made_is_in_none():
    assert loops(watched(made[0])) == []


@pytest.mark.parametrize(
    "turn", [deep, deep_with_a_sum, few_heads, torchs_own, residual_layers, parameters, recurrent_layers]
)
def test_layers_that_are_called_once_each_are_no_loop_however_many(turn):
    assert loops(watched(turn)) == []


def test_layers_of_many_batches_in_a_step_are_no_loop_either():
    assert loops(watched(deep, batches=TURNS)) == []


def test_a_comprehension_is_timed_as_its_loop_is(monkeypatch):
    with brief_run(job(model=lambda: Turning(same_layer)), None, name="", steps=3) as run, LineTimes() as times:
        whole_step(run)()
    ((place, passes),) = [each for each in times.passes.items() if each[0].function == "same_layer"]
    assert times.whole[place] > 0
    assert passes >= TURNS


def test_a_line_that_python_comes_to_a_few_times_is_no_loop_of_many_turns():
    turns = LoopCost(operations=900, again=900, times=300, passes=3, backward=1.0, seconds=0.05, high=0.05, timed=0.05)
    line = replace(LINE, operations=900, direct=900, turns=turns)
    assert loops(replace(HEALTHY, lines=(line,))) == []
    assert loops(replace(HEALTHY, lines=(replace(line, turns=replace(turns, passes=30)),))) != []


def test_a_loop_is_told_at_the_first_of_its_lines_that_take_about_as_long_as_the_longest():
    turns = LoopCost(operations=60, again=60, times=30, passes=30, backward=0.1, seconds=0.03, high=0.03, timed=0.03)
    first = replace(LINE, operations=60, direct=60, turns=turns)
    second = replace(first, line=first.line + 1, turns=replace(turns, high=0.031))
    for lines in (first, second), (second, first):
        (found,) = [each for each in found_in_run(replace(HEALTHY, lines=lines)) if each.code == "H704"]
        assert found.place == f"{first.path}:{first.line}"


def test_a_real_look_tells_a_loop_of_calls_with_what_it_calls():
    look = profile_run(job(model=lambda: Turning(same_block)), report=lambda what: None)
    (line,) = loops(look)
    assert line.turns is not None
    assert line.turns.operations > line.direct  # those of what it calls too
    assert line.turns.timed > line.timed
    (found,) = [each for each in found_in_run(look) if each.code == "H704"]
    assert found.place.endswith(f"test_python_loops.py:{same_block.__code__.co_firstlineno + 3}")


def test_the_share_of_the_backward_pass_is_told_by_its_operations_and_not_by_those_that_asked_for_them(monkeypatch):
    ticks = count()
    monkeypatch.setattr(
        "hasten.doctor.profiling.operation_counts.time.perf_counter", lambda: next(ticks)
    )  # each takes one

    def by_column(model: Turning, rows: Tensor) -> Tensor:
        out = torch.zeros_like(rows)
        for index in range(TURNS):
            out[:, index] = rows[:, index] * model.scales[index]  # nodes of their own are made after each
        return out

    def beside(model: Turning, rows: Tensor) -> Tensor:
        return model.blocks[0](rows) + by_column(model, rows)

    (line,) = loops(watched(beside))
    assert line.function == "by_column"
    assert line.turns is not None
    assert 0.8 < line.turns.backward < 1


def turns(**changes: Any) -> LoopCost:
    usual = LoopCost(operations=96, again=96, times=32, backward=0.0, seconds=0.02, high=0.03, timed=0.02)
    return replace(usual, **changes)


def test_a_loop_is_priced_with_its_share_of_the_backward_pass_and_with_what_it_calls():
    line = replace(LINE, operations=0, direct=0, seconds=0.0, high=0.003, turns=turns(backward=0.4))
    called = replace(LINE, line=9, in_a_loop=False, operations=96, direct=96)
    (found,) = found_in_run(replace(HEALTHY, lines=(line, called), larger=four_times(0.12)))
    assert (found.code, found.place) == ("H704", "train.py:7")
    assert found.price is not None
    assert found.price.seconds == pytest.approx(100 * (0.03 + 1.25 * 0.4 * 0.05))


def test_lines_that_no_sample_has_met_make_no_finding_by_the_high_ends_of_their_ranges():
    line = replace(LINE, operations=96, direct=96, turns=turns(seconds=0.0, high=0.004, timed=0.001))
    assert found_in_run(replace(HEALTHY, lines=(line, replace(line, line=8)))) == []


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
    assert found.names["aten::_to_copy"] > 1
    assert found.backward.copies == 0


def test_a_tensor_of_a_device_that_comes_to_the_host_is_a_read():
    there, here = torch.ones(2, device="meta"), torch.ones(2)
    assert is_read("aten::_to_copy", [there], here)
    assert is_read("aten::copy_", [here, there], here)
    assert is_read("aten::nonzero", [there], there)
    assert not is_read("aten::_to_copy", [here], there)
    assert not is_read("aten::_to_copy", [here], here)
    assert not is_read("aten::nonzero", [here], here)


def test_what_no_mode_can_watch_is_no_end_of_the_look(monkeypatch):
    def refuse(*given: Any) -> None:
        raise RuntimeError("no rule for this mode")

    monkeypatch.setattr(Operations, "__torch_dispatch__", refuse)
    look = profile_run(job(), report=lambda what: None)
    assert (look.operations, look.not_counted) == (0, "no rule for this mode")
    assert ("note", "what single lines do is not known whole: no rule for this mode") in run_lines(look)


@pytest.mark.proof
def test_every_line_is_kept_for_the_rules_however_many_there_are(tmp_path):
    lines = "\n".join(f"    total = total + {index} * batch[1].sum()" for index in range(60))
    source = f"def loss(model, batch):\n    total = model(batch[0]).square().mean()\n{lines}\n    return total\n"
    file = tmp_path / "losses.py"
    file.write_text(source)
    made: dict[str, Any] = {}
    exec(compile(source, str(file), "exec"), made)
    look = profile_run(job(made["loss"]), report=lambda what: None)
    assert len([line for line in look.lines if line.path.endswith("losses.py") and line.operations]) == 61
    order = [(-line.high, line.path, line.line) for line in look.lines]
    assert order == sorted(order)


@pytest.mark.proof
def test_hasten_is_no_code_of_the_users_where_it_is_reached_through_a_link(tmp_path):
    (tmp_path / "hasten").symlink_to(Path(hasten.__file__).parent, target_is_directory=True)
    code = "from hasten.doctor.profiling import user_lines; print(user_lines.is_users(user_lines.__file__))"
    environment: Mapping[str, str] = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
