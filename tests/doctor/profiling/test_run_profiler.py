"""Looks at real jobs: what they see of a model, that they leave nothing behind, and whose lines they name."""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import DeviceType, ProfilerActivity, profile
from torch.utils.data import Dataset, IterableDataset

import hasten
from hasten.checkpoint.folders.process_folder import process_folder
from hasten.doctor.model_rules.sizes_off_the_grid import grid_of
from hasten.doctor.profiling import run_profiler
from hasten.doctor.profiling.checkpoint_cost import checkpoint_cost
from hasten.doctor.profiling.device_use import covered, intervals
from hasten.doctor.profiling.larger_batches import may_be_cheaper
from hasten.doctor.profiling.model_profiler import profile_model
from hasten.doctor.profiling.run_profiler import profile_run
from hasten.doctor.registry import found_in_model, found_in_run
from hasten.errors import DataFailed, StorageFailed
from hasten.facts.plan import make_plan
from hasten.facts.profiles import CheckpointCost, NotMeasured
from hasten.report.terminal.profile_text import run_lines
from hasten.training.probes.brief_run import brief_run
from support.doctor.faulty_model_job import Model, job
from support.doctor.run_profiles import HEALTHY


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


@pytest.mark.proof
def test_a_state_that_no_file_can_hold_is_no_end_of_the_profile():
    class Odd(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "lambda": lambda: None}

    look = profile_run(job(optimizer=lambda parameters: Odd(parameters, lr=0.01)), report=lambda what: None)
    assert isinstance(look.checkpoint, NotMeasured)
    assert "lambda" in look.checkpoint.why


def test_a_disk_without_room_for_a_checkpoint_is_an_error_with_what_to_do(monkeypatch):
    monkeypatch.setattr(
        "hasten.doctor.profiling.checkpoint_cost.shutil.disk_usage", lambda folder: SimpleNamespace(free=10)
    )
    with brief_run(job(), None, name="", steps=1) as run, pytest.raises(StorageFailed, match="10 B are free"):
        checkpoint_cost(run, keeps_best=False)


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


def test_the_grid_is_that_of_the_device_and_the_precision():
    assert (grid_of("cuda:0", "bfloat16"), grid_of("cuda:0", "float32")) == (8, 4)
    assert (grid_of("cpu", "bfloat16"), grid_of("cpu", "float32")) == (32, 16)


class Steady(Slow):
    steady_reason = "each is the same whenever it is read"  # so threads may read them

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1, 6, 6), index / 64), index % 3


@pytest.mark.proof
def test_threads_have_one_core_for_all_of_them():
    plan = make_plan(loader_workers=(2, {"kind": "threads"}))
    look = profile_run(job(train=Steady()), plan, report=lambda what: None)
    assert (look.workers, look.reading_cores) == (2, 1)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        rows, labels = job().train
        return ((rows[0], labels[0]) for _ in count())


def test_a_stream_that_does_not_end_soon_is_no_short_evaluation(monkeypatch):
    monkeypatch.setattr(run_profiler, "_WHOLE_EVALUATION_SECONDS", 0.0)
    look = profile_run(job(valid=Endless(), evaluate_every=2), report=lambda what: None)
    assert isinstance(look.evaluation_seconds, NotMeasured)
    assert "does not say how long it is" in look.evaluation_seconds.why


def test_an_evaluation_whose_seconds_nobody_knows_is_said_and_counts_in_no_share():
    unknown = replace(HEALTHY, evaluation_seconds=NotMeasured(why="it has no end"))
    assert found_in_run(unknown) == []
    assert unknown.epoch_seconds == pytest.approx(10.0)
    assert ("note", "what an evaluation takes is not known: it has no end") in run_lines(unknown)


class TornPictures(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        raise OSError("a file is torn")


@pytest.mark.proof
def test_an_evaluation_that_fails_is_said_with_what_else_was_seen():
    look = profile_run(job(valid=TornPictures()), report=lambda what: None)
    assert isinstance(look.evaluation_seconds, NotMeasured)
    assert "a file is torn" in look.evaluation_seconds.why
    assert look.together.value > 0


class Once(IterableDataset[Any]):
    def __init__(self) -> None:
        rows, labels = job().train
        self.samples = iter([*zip(rows, labels, strict=True)])

    def __iter__(self) -> Iterator[Any]:
        return self.samples


def test_a_stream_that_can_be_gone_through_once_is_told_that_a_look_needs_it_several_times():
    with pytest.raises(DataFailed, match="a profile reads a stream several times"):
        profile_run(job(train=Once(), epochs=None, max_steps=100), report=lambda what: None)
