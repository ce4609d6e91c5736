"""Whose line it is: of operations, of seconds, and of what the compiler says."""

from __future__ import annotations

import linecache
import logging
import sys
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.doctor.profiling.compiler_log import compiler_notes
from hasten.doctor.profiling.line_times import LineTimes
from hasten.doctor.profiling.operation_counts import Operations
from hasten.doctor.profiling.run_profiler import profile_run
from hasten.doctor.profiling.user_lines import function_of, lines_of_loops, place_of, reason_of
from hasten.measure.stack_sampling import callers
from hasten.training.probes.brief_run import brief_run, whole_step
from support.doctor.faulty_model_job import job


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


def test_operations_of_the_users_own_gradients_are_counted_at_their_lines():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows = batch[0].requires_grad_()
        out = Doubled.apply(model(rows)).sum()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        (slopes,) = torch.autograd.grad(out, rows, create_graph=True)
        return slopes.square().mean()

    with brief_run(job(loss), None, name="", steps=3) as run, Operations(autocast=False) as found:
        whole_step(run)()
    assert {place.function for place in found.lines} >= {"Doubled.forward", "Doubled.backward", "loss"}
    first = loss.__code__.co_firstlineno
    asked = next(tally for place, tally in found.lines.items() if place.line == first + 3)
    assert asked.operations > 5
    assert asked.direct == 1  # the ones that it begins with


@pytest.mark.proof
def test_a_line_that_only_some_steps_run_through_is_timed_in_none():
    turns = count()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        total = functional.cross_entropy(model(batch[0]), batch[1])
        if next(turns) % 4 == 0:
            total = total + torch.linalg.svdvals(torch.ones(200, 200)).sum()
        return total

    found = profile_run(job(loss))
    rare = [line for line in found.lines if line.line == loss.__code__.co_firstlineno + 3]
    assert rare
    assert all(line.timed == 0 for line in rare)


@pytest.mark.proof
def test_lines_of_compiled_code_are_nobodys():
    seen: list[Any] = []

    @torch.compiler.disable
    def noted(rows: Tensor) -> Tensor:
        seen.append(place_of(callers(sys._getframe())))
        return rows

    def within(rows: Tensor) -> Tensor:
        return noted(rows) + 1

    compiled = torch.compile(within, backend="eager")

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(compiled(within(batch[0]))), batch[1])

    with brief_run(job(loss), None, name="", steps=3) as run:
        whole_step(run)()
    assert [place and place.function for place in seen] == ["noted", None]


def test_every_line_of_the_users_is_timed_and_who_traced_before_does_so_again():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        def doubled() -> Any:
            yield model(batch[0])
            raise ValueError

        found = []
        with suppress(ValueError):
            for each in doubled():
                found.append(each * 2)
        return functional.cross_entropy(found[0], batch[1])

    before, first = sys.gettrace(), loss.__code__.co_firstlineno
    with brief_run(job(loss), None, name="", steps=3) as run, LineTimes() as times:
        whole_step(run)()
    assert sys.gettrace() is before
    seen = {(place.function, place.line - first) for place in times.seconds}
    assert {("doubled", 2), ("doubled", 3), ("loss", 7), ("loss", 8), ("loss", 9)} <= seen
    assert {function for function, _ in seen} == {"doubled", "loss", "Model.forward"}
    assert min(times.seconds.values()) > 0


def test_operations_are_counted_by_who_begins_them():
    layer, rows = nn.Linear(4, 4), torch.ones(2, 4)
    with Operations(autocast=False) as found:
        out = layer(rows) + 1
        copy = out.double()
        copy.sum().backward()
    assert found.elsewhere.direct >= 2  # nothing here is called by hasten
    assert found.elsewhere.copies == 1
    with Operations(autocast=True) as found:
        out.detach().double()
    assert found.elsewhere.copies == 0


class Counting(nn.Module):
    """Compiled again for every turn, and broken in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows * self.turn
        if rows.sum().item() > 0:
            rows = rows + 1
        return rows


def test_what_the_compiler_cannot_keep_is_noted_with_its_line_and_its_loggers_are_restored():
    logger = logging.getLogger("torch._dynamo.symbolic_convert.__graph_breaks")
    before = logger.level, logger.propagate, list(logger.handlers)
    with compiler_notes() as notes:
        model = Counting()
        compiled = torch.compile(model, backend="eager")
        for turn in range(1, 4):
            model.turn = turn
            compiled(torch.ones(2))
    assert {note.line for note in notes.breaks} == {Counting.forward.__code__.co_firstlineno + 2}
    assert any("turn" in note.why for note in notes.again)
    assert all(note.path.endswith("test_user_lines.py") for note in (*notes.breaks, *notes.again))
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_a_comprehension_is_a_part_of_the_function_that_it_is_in():
    assert function_of("job.<locals>.loss.<locals>.<genexpr>") == "loss"
    assert function_of("Model.forward.<locals>.<listcomp>.<locals>.<genexpr>") == "Model.forward"


def test_lines_of_loops_are_found_in_files_and_in_cells_of_notebooks(tmp_path, monkeypatch):
    file = tmp_path / "train.py"
    file.write_text("x = 1\nfor i in x:\n    y = 2\nz = [a\n     for a in x]\nwhile x:\n    b = 1\nc = 3\n")
    assert {line for lines in lines_of_loops(str(file)) for line in lines} == {3, 4, 5, 7}
    assert lines_of_loops(str(tmp_path / "none.py")) == ()
    cell = "for i in x:\n    y = 2\n"
    monkeypatch.setitem(linecache.cache, "ipykernel_7/1.py", (len(cell), None, cell.splitlines(True), "1.py"))
    assert lines_of_loops("ipykernel_7/1.py") == (range(2, 3),)


@pytest.mark.parametrize(
    ("message", "reason"), [("\n  the disk is full  \nand more", "the disk is full"), (" \n\t\n", "ValueError")]
)
def test_a_reason_is_the_first_line_of_a_message(message, reason):
    assert reason_of(ValueError(message)) == reason
