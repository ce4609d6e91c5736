"""Looks at real jobs: what they see of a model, that they leave nothing behind, and whose lines they name."""

from __future__ import annotations

import gc
import logging
import mmap
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import hasten
from hasten.checkpoint.temporary import process_folder
from hasten.doctor.compiler_notes import compiler_notes
from hasten.doctor.device_use import covered, intervals
from hasten.doctor.inspect import found_in, inspect_job
from hasten.doctor.line_times import LineTimes
from hasten.doctor.model_rules.sizes_off_the_grid import grid_of
from hasten.doctor.observe import observe_job
from hasten.doctor.operations import Operations
from hasten.doctor.places import function_of, lines_of_loops, place_of
from hasten.measure.held import held_bytes
from hasten.measure.stacks import share
from hasten.training.brief_run import brief_run, whole_step


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 50, 3)
        self.norm = nn.BatchNorm2d(50)
        self.left_out = nn.Linear(8, 8)
        self.cut_off = nn.Linear(50, 50)
        self.last = nn.Linear(50, 3)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.convolution(images)).mean((2, 3))
        return self.last(features + self.cut_off(features).detach())


def job(loss: Callable[..., Any] | None = None, **changes: Any) -> hasten.Job:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 1, 6, 6, generator=generator), torch.randint(0, 3, (64,), generator=generator)
    given: dict[str, Any] = {
        "model": Model,
        "loss": loss or hasten.supervised(functional.cross_entropy),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        "train": rows,
        "batch_size": 16,
        "epochs": 1,
    }
    return hasten.Job(**(given | changes))


def test_a_model_shows_its_useless_bias_its_unused_layer_and_what_gets_no_gradient():
    look = inspect_job(job())
    found = {each.code: each for each in found_in(look)}
    assert found.keys() == {"H601", "H602", "H603", "H604"}
    assert found["H601"].part == "model.convolution"
    assert "left_out (Linear, 72 parameters) was never called" in found["H602"].message
    assert "no gradient reached cut_off.weight, cut_off.bias" in found["H603"].message
    assert "in_features 50 and out_features 50" in found["H604"].message
    assert all(each.path.endswith("test_looks.py") for each in found.values())
    assert look.activation_bytes > 0
    assert look.flops_per_sample > 0


def test_a_look_leaves_random_states_and_hooks_as_they_were():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    made: list[nn.Module] = []

    def model() -> nn.Module:
        made.append(Model())
        return made[-1]

    inspect_job(job(model=model))
    observe_job(job(model=model, valid=job().train), tell=lambda what: None)
    assert torch.equal(torch.get_rng_state(), state)
    for module in (each for model in made for each in model.modules()):
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    assert "hasten-stacks" not in {thread.name for thread in threading.enumerate()}
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_a_look_at_a_run_tells_all_parts_of_a_step_and_the_lines_that_read():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, labels = batch
        out = model(rows)
        [score.item() for score in out.detach().flatten()]
        return functional.cross_entropy(out, labels)

    told: list[str] = []
    look = observe_job(job(loss, valid=job().train), tell=told.append)
    assert told[0] == "the first steps"
    assert look.parts.keys() == {"data_wait", "transfer", "forward", "backward", "optimizer", "python"}
    assert 0 < look.together.low <= look.together.value <= look.together.high
    assert [each.times for each in look.larger] == [4]
    assert look.evaluation_seconds > 0
    (reading,) = [line for line in look.lines if line.reads]
    assert (reading.function, reading.reads, reading.in_a_loop) == ("loss", 48, True)
    assert look.growth is None


def test_where_no_larger_batch_can_be_tried_it_is_said_why():
    few = observe_job(job(batch_size=32), tell=lambda what: None)
    assert (few.larger, few.larger_refused) == ((), "the data has 64 samples")

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if len(batch[1]) > 16:
            raise ValueError("written for sixteen")
        return functional.cross_entropy(model(batch[0]), batch[1])

    fixed = observe_job(job(loss), tell=lambda what: None)
    assert fixed.larger == ()
    assert "written for sixteen" in fixed.larger_refused


def test_what_a_job_keeps_of_every_step_is_seen_as_growth():
    kept: list[Tensor] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, labels = batch
        kept.append(torch.zeros(1 << 16))
        return functional.cross_entropy(model(rows), labels)

    look = observe_job(job(loss), tell=lambda what: None)
    assert look.growth is not None
    assert look.growth == pytest.approx(1 << 18, rel=0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="others map memory in their own ways")
def test_memory_that_is_new_in_every_step_is_counted_in_pages():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        with mmap.mmap(-1, 512 * mmap.PAGESIZE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            memory.write(b"x" * len(memory))
        return functional.cross_entropy(model(batch[0]), batch[1])

    assert observe_job(job(loss), tell=lambda what: None).new_pages >= 512


def test_a_look_saves_a_checkpoint_and_leaves_nothing_of_it():
    look = observe_job(job(), tell=lambda what: None)
    assert look.checkpoint is not None
    assert look.checkpoint.bytes > sum(each.nbytes for each in Model().parameters())
    assert 0 < look.checkpoint.stall_seconds <= look.checkpoint.seconds
    assert look.checkpoint.share <= 0.01
    assert not (process_folder() / "checkpoints").exists()


def test_a_state_that_no_file_can_hold_is_no_end_of_the_look():
    class Odd(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "lambda": lambda: None}

    look = observe_job(job(optimizer=lambda parameters: Odd(parameters, lr=0.01)), tell=lambda what: None)
    assert look.checkpoint is None
    assert "lambda" in look.checkpoint_refused


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


def test_operations_of_a_backward_pass_of_the_users_own_are_told_at_their_line():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(Doubled.apply(model(batch[0])), batch[1])  # pyright: ignore[reportArgumentType]

    with brief_run(job(loss), None, name="", steps=3) as run, Operations(autocast=False) as found:
        whole_step(run)()
    assert {place.function for place in found.lines} >= {"Doubled.forward", "Doubled.backward", "loss"}


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


def test_seconds_in_which_anything_runs_are_counted_once():
    assert covered([(3.0, 4.0), (0.0, 2.0), (1.0, 1.5), (1.0, 2.5)]) == 3.5
    with profile(activities=[ProfilerActivity.CPU]) as profiled, torch.profiler.record_function("of the user's"):
        torch.ones(400, 400) @ torch.ones(400, 400)
    events = profiled.events() or ()
    found = intervals(events, DeviceType.CPU)
    assert len(found) == len(events) - 1
    assert 0 < covered(found) < sum(end - begin for begin, end in found)  # an operation calls others
    assert intervals(events, DeviceType.CUDA) == []


@pytest.mark.gpu
def test_a_look_at_a_device_tells_how_long_it_computes_and_what_its_memory_holds():
    look = observe_job(job(device="cuda"), tell=lambda what: None)
    assert look.device_use is not None
    assert 0 < look.device_use.busy_seconds < look.together.high
    assert look.device_use.reserved_bytes > 0
    assert look.device_use.retries == 0


def test_bytes_that_are_asked_for_and_given_back_are_counted():
    cpu = torch.device("cpu")
    gc.collect()
    before = held_bytes(cpu)
    tensor = torch.zeros(1 << 22)
    assert held_bytes(cpu) - before >= tensor.nbytes
    del tensor
    gc.collect()
    assert held_bytes(cpu) - before < 1 << 20


def test_operations_are_told_apart_by_who_begins_them():
    layer, rows = nn.Linear(4, 4), torch.ones(2, 4)
    with Operations(autocast=False) as found:
        out = layer(rows) + 1
        copy = out.double()
        copy.sum().backward()
    assert found.backward.operations > 0
    assert found.names["aten::addmm"] == 1
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


def test_what_the_compiler_cannot_keep_is_heard_with_its_line_and_its_loggers_are_as_before():
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
    assert all(note.path.endswith("test_looks.py") for note in (*notes.breaks, *notes.again))
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_a_line_that_hasten_has_not_called_is_nobodys():
    assert place_of(sys._getframe()) is None


def test_a_comprehension_is_a_part_of_the_function_that_it_is_in():
    assert function_of("job.<locals>.loss.<locals>.<genexpr>") == "loss"
    assert function_of("Model.forward.<locals>.<listcomp>.<locals>.<genexpr>") == "Model.forward"
    assert function_of("<module>") == "<module>"


def test_lines_of_loops_are_those_that_run_again_and_again(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("x = 1\nfor i in x:\n    y = 2\nz = [a\n     for a in x]\nwhile x:\n    b = 1\nc = 3\n")
    assert lines_of_loops(str(file)) == {3, 4, 5, 7}
    assert lines_of_loops(str(tmp_path / "none.py")) == frozenset()


@pytest.mark.parametrize(("found", "samples"), [(0, 100), (50, 100), (100, 100), (3, 7)])
def test_the_interval_of_a_share_holds_it_and_stays_between_none_and_all(found, samples):
    low, value, high = share(found, samples)
    assert 0 <= low <= value <= high <= 1
    assert high - low > 0
    assert share(0, 0) == (0.0, 0.0, 1.0)


def test_the_grid_is_that_of_the_device_and_the_precision():
    assert (grid_of("cuda:0", "bfloat16"), grid_of("cuda:0", "float32")) == (8, 4)
    assert (grid_of("cpu", "bfloat16"), grid_of("cpu", "float32")) == (32, 16)
