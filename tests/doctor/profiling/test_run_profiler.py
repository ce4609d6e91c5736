"""Looks at real jobs: what they see of a model, that they leave nothing behind, and whose lines they name."""

from __future__ import annotations

import gc
import mmap
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import Dataset

import hasten
from hasten.checkpoint.folders.process_folder import process_folder
from hasten.doctor.model_rules.sizes_off_the_grid import grid_of
from hasten.doctor.profiling.device_use import covered, intervals
from hasten.doctor.profiling.larger_batches import may_be_cheaper
from hasten.doctor.profiling.model_profiler import profile_model
from hasten.doctor.profiling.run_profiler import profile_run
from hasten.doctor.registry import found_in_model
from hasten.facts.plan import make_plan
from hasten.facts.profiles import CheckpointCost, NotMeasured
from hasten.measure.process_memory import held_bytes
from hasten.measure.stack_sampling import share
from support.doctor.faulty_model_job import Model, job


class Slow(Dataset[Any]):
    """Busy with each sample."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(1, 6, 6), sum(range(20_000)) % 3


def test_a_model_shows_its_useless_bias_its_unused_layer_and_what_gets_no_gradient():
    look = profile_model(job())
    found = {each.code: each for each in found_in_model(look)}
    assert found.keys() == {"H601", "H602", "H603", "H604"}
    assert found["H601"].part == "model.convolution"
    assert "left_out (Linear, 72 parameters) was never called" in found["H602"].message
    assert "no gradient reached cut_off.weight, cut_off.bias" in found["H603"].message
    assert "in_features 50 and out_features 50" in found["H604"].message
    assert all(each.path.endswith("faulty_model_job.py") for each in found.values())
    assert look.activation_bytes > 0
    assert look.flops_per_sample > 0


def test_a_look_leaves_random_states_and_hooks_as_they_were():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    made: list[nn.Module] = []

    def model() -> nn.Module:
        made.append(Model())
        return made[-1]

    profile_model(job(model=model))
    profile_run(job(model=model, valid=job().train), report=lambda what: None)
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
    look = profile_run(job(loss, valid=job().train), report=told.append)
    assert told[0] == "the first steps"
    assert look.parts.keys() == {"data_wait", "transfer", "forward", "backward", "optimizer", "python"}
    assert 0 < look.together.low <= look.together.value <= look.together.high
    assert [each.times for each in look.larger] == [1, 4]
    asks_for_more = may_be_cheaper([(each.times, each.step.value) for each in look.larger])  # which the clock decides
    assert look.no_larger == ("the data has 64 samples" if asks_for_more else "")
    assert look.evaluation_seconds > 0
    (reading,) = [line for line in look.lines if line.reads]
    assert (reading.function, reading.reads, reading.in_a_loop) == ("loss", 48, True)
    assert look.growth is None


@pytest.mark.proof
def test_where_no_larger_batch_can_be_tried_it_is_said_why():
    few = profile_run(job(batch_size=32), report=lambda what: None)
    assert (few.larger, few.no_larger) == ((), "the data has 64 samples")

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if len(batch[1]) > 16:
            raise ValueError("written for sixteen")
        return functional.cross_entropy(model(batch[0]), batch[1])

    fixed = profile_run(job(loss), report=lambda what: None)
    assert (fixed.larger, fixed.no_larger, fixed.larger_failed) == ((), "", "written for sixteen")


def test_what_a_job_keeps_of_every_step_is_seen_as_growth():
    kept: list[Tensor] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, labels = batch
        kept.append(torch.zeros(1 << 16))
        return functional.cross_entropy(model(rows), labels)

    look = profile_run(job(loss), report=lambda what: None)
    assert look.growth is not None
    assert look.growth == pytest.approx(1 << 18, rel=0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="others map memory in their own ways")
def test_memory_that_is_new_in_every_step_is_counted_in_pages():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        with mmap.mmap(-1, 512 * mmap.PAGESIZE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            memory.write(b"x" * len(memory))
        return functional.cross_entropy(model(batch[0]), batch[1])

    look = profile_run(job(loss), report=lambda what: None)
    assert look.new_pages >= 512
    assert look.kept_memory is not None  # it is tried whether the C library can help: not with what is mapped by hand
    kept = profile_run(job(loss), make_plan(allocator="keep_freed_memory"), report=lambda what: None)
    assert (kept.new_pages >= 512, kept.kept_memory) == (True, None)


@pytest.mark.proof
def test_a_look_saves_a_checkpoint_and_leaves_nothing_of_it():
    look = profile_run(job(), report=lambda what: None)
    assert isinstance(look.checkpoint, CheckpointCost)
    weights = sum(each.nbytes for each in Model().parameters())
    assert look.checkpoint.bytes > weights
    stopping = profile_run(job(valid=job().train, stop=hasten.EarlyStopping("loss")), report=lambda what: None)
    assert isinstance(stopping.checkpoint, CheckpointCost)
    assert stopping.checkpoint.bytes > look.checkpoint.bytes + weights  # with the best so far
    assert not (process_folder() / "checkpoints").exists()


def test_a_state_that_no_file_can_hold_is_no_end_of_the_look():
    class Odd(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "lambda": lambda: None}

    look = profile_run(job(optimizer=lambda parameters: Odd(parameters, lr=0.01)), report=lambda what: None)
    assert isinstance(look.checkpoint, NotMeasured)
    assert "lambda" in look.checkpoint.why


def test_an_optimizer_that_gives_no_state_is_no_end_of_the_look():
    class Mute(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            raise NotImplementedError("nothing to tell")

    look = profile_run(job(optimizer=lambda parameters: Mute(parameters, lr=0.01)), report=lambda what: None)
    assert look.checkpoint == NotMeasured(why="nothing to tell")


def test_a_disk_that_refuses_is_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr(
        "hasten.doctor.profiling.checkpoint_cost.shutil.disk_usage", lambda folder: SimpleNamespace(free=10)
    )
    look = profile_run(job(), report=lambda what: None)
    assert isinstance(look.checkpoint, NotMeasured)
    assert "10 B are free; set TMPDIR" in look.checkpoint.why


@pytest.mark.proof
def test_what_workers_take_and_what_they_begin_with_is_not_told_of_a_step():
    look = profile_run(job(train=Slow(), batch_size=8), make_plan(loader_workers=2), report=lambda what: None)
    assert look.workers == 2
    assert look.loading_cpu > 0
    assert look.new_pages < 1_000  # those of a process that is forked are several thousand


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
    look = profile_run(job(device="cuda"), report=lambda what: None)
    assert look.device_use is not None
    assert look.device_use.busy_seconds is not None
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


@pytest.mark.parametrize(("found", "samples"), [(0, 100), (50, 100), (100, 100), (3, 7)])
def test_the_interval_of_a_share_holds_it_and_stays_between_none_and_all(found, samples):
    low, value, high = share(found, samples)
    assert 0 <= low <= value <= high <= 1
    assert high - low > 0
    assert share(0, 0) == (0.0, 0.0, 1.0)


def test_the_grid_is_that_of_the_device_and_the_precision():
    assert (grid_of("cuda:0", "bfloat16"), grid_of("cuda:0", "float32")) == (8, 4)
    assert (grid_of("cpu", "bfloat16"), grid_of("cpu", "float32")) == (32, 16)
