"""Profiles of real jobs: what they measure, what they leave behind, and whose lines they name."""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
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
from hasten.doctor.profiling.device_use import covered, intervals
from hasten.doctor.profiling.larger_batches import may_be_cheaper
from hasten.doctor.profiling.model_profiler import profile_model
from hasten.doctor.profiling.operation_counts import Operations
from hasten.doctor.profiling.run_profiler import profile_run
from hasten.doctor.registry import found_in_model, found_in_run
from hasten.facts.plan import make_plan
from hasten.facts.profiles import CheckpointCost, NotMeasured, RunProfile
from hasten.report.terminal.profile_text import layer_rows, model_lines, run_lines
from support.doctor.faulty_model_job import Model, jagged_job, job
from support.doctor.run_profiles import HEALTHY

GROWTH = 1 << 19  # bytes


def profiled(job: hasten.Job, plan: Any = None) -> RunProfile:
    return profile_run(job, plan)


def test_a_model_shows_its_useless_bias_its_unused_layer_and_what_gets_no_gradient():
    found_model = profile_model(job())
    found = {each.code: each for each in found_in_model(found_model)}
    assert found.keys() == {"H601", "H602", "H603", "H604"}
    assert found["H601"].part == "model.convolution"
    assert "left_out (Linear, 72 parameters) was never called" in found["H602"].message
    assert "no gradient reached cut_off.weight, cut_off.bias" in found["H603"].message
    assert "in_features 50 and out_features 50" in found["H604"].message
    assert all(each.path.endswith("faulty_model_job.py") for each in found.values())
    assert found_model.activation_bytes > 0
    assert found_model.flops_per_sample


def test_the_grid_is_that_of_the_device_and_the_precision():
    assert (grid_of("cuda:0", "bfloat16"), grid_of("cuda:0", "float32")) == (8, 4)
    assert (grid_of("cpu", "bfloat16"), grid_of("cpu", "float32")) == (32, 16)


def test_a_profile_measures_all_parts_of_a_step_and_leaves_random_states_and_hooks_unchanged():
    made, told = list[nn.Module](), list[str]()

    def model() -> nn.Module:
        made.append(Model())
        return made[-1]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, labels = batch
        out = model(rows)
        [score.item() for score in out.detach().flatten()]
        return functional.cross_entropy(out, labels)

    torch.manual_seed(3)
    state = torch.get_rng_state()
    profile_model(job(model=model))
    found = profile_run(job(loss, model=model, valid=job().train), watch=lambda *seen: told.append(seen))
    assert torch.equal(torch.get_rng_state(), state)
    for module in (each for model in made for each in model.modules()):
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    assert "hasten-stacks" not in {thread.name for thread in threading.enumerate()}
    assert sys.getswitchinterval() == pytest.approx(0.005)
    assert (told[0][0], told[0][2]) == (0, "the first steps")
    assert told[-1][0] < told[-1][1]
    assert found.parts.keys() == {"data_wait", "transfer", "forward", "backward", "optimizer", "python"}
    assert 0 < found.together.low <= found.together.value <= found.together.high
    assert [each.times for each in found.larger] == [1, 4]
    asks_for_more = may_be_cheaper([(each.times, each.step.value) for each in found.larger])  # which the clock decides
    assert found.no_larger == ("the data has 64 samples" if asks_for_more else "")
    assert isinstance(found.evaluation_seconds, float)
    assert found.evaluation_seconds > 0
    (reading,) = [line for line in found.lines if line.reads]
    assert (reading.function, reading.reads) == ("loss", 48)
    assert found.growth is None


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        rows, labels = job().train
        return ((rows[0], labels[0]) for _ in count())


def touch_new_pages(count: int) -> None:
    if sys.platform == "linux":  # others map memory in their own ways
        with mmap.mmap(-1, count * mmap.PAGESIZE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            memory.write(b"x" * len(memory))


def test_a_profile_finds_memory_that_grows_and_is_returned_loops_over_calls_and_batches_of_fixed_size():
    kept = list[Tensor]()

    def scaled(rows: Tensor) -> Tensor:
        return rows * 1.01 + 0.01

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, labels = batch
        if len(labels) > 16:
            raise ValueError("\n made for sixteen")
        kept.append(torch.zeros(GROWTH // 4))
        touch_new_pages(512)
        for _ in range(60):
            rows = scaled(rows)
        return functional.cross_entropy(model(rows), labels)

    found = profiled(job(loss, valid=Endless(), evaluate_every=2))
    assert found.growth is not None
    assert GROWTH / 2 < found.growth < 1.1 * GROWTH
    if sys.platform == "linux":
        assert found.new_pages >= 512
        assert found.kept_memory is not None
    assert (found.larger, found.no_larger) == ((), "made for sixteen")
    assert isinstance(found.evaluation_seconds, NotMeasured)
    assert "does not say how long it is" in found.evaluation_seconds.why
    findings = {each.code: each for each in found_in_run(found)}
    assert findings.keys() >= {"H704", "H707"}
    assert findings["H704"].place.endswith(f"test_run_profiler.py:{loss.__code__.co_firstlineno + 7}")
    loop = next(line.turns for line in found.lines if line.function == "loss" and line.turns is not None)
    assert (loop.operations, loop.over_layers) == (120, False)
    assert loop.passes >= 60
    assert loop.timed > 0


@pytest.mark.proof
def test_a_model_under_which_no_mode_can_count_is_profiled_without_its_lines(monkeypatch):
    def refuse(*given: Any) -> None:
        raise RuntimeError("no rule for this mode")

    monkeypatch.setattr(Operations, "__torch_dispatch__", refuse)
    found = profiled(job())
    assert (found.operations, found.not_counted) == (0, "no rule for this mode")


def test_batches_of_nested_tensors_are_profiled_without_what_no_mode_can_count():
    model, run = profile_model(jagged_job()), profiled(jagged_job())
    assert model.flops_per_sample is None
    assert "Multiple dispatch failed" in dict(model_lines(model))["work"]
    assert "unknown" in layer_rows(model)[2]
    assert model.peak_bytes > 0
    assert run.together.value > 0
    assert "not supported for NestedTensor" in run.no_larger


@pytest.mark.proof
def test_a_profile_saves_a_checkpoint_and_leaves_nothing_of_it():
    found = profiled(job())
    assert isinstance(found.checkpoint, CheckpointCost)
    weights = sum(each.nbytes for each in Model().parameters())
    assert found.checkpoint.bytes > weights
    stopping = profiled(job(valid=job().train, stop=hasten.EarlyStopping("loss")))
    assert isinstance(stopping.checkpoint, CheckpointCost)
    assert stopping.checkpoint.bytes > found.checkpoint.bytes + weights  # with the best so far
    assert not (process_folder() / "checkpoints").exists()


class Torn(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        raise OSError("a file is torn")


@pytest.mark.proof
def test_a_state_that_no_file_can_hold_and_an_evaluation_that_fails_do_not_end_the_profile():
    class Odd(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "lambda": lambda: None}

    found = profiled(job(optimizer=lambda parameters: Odd(parameters, lr=0.01), valid=Torn()))
    assert isinstance(found.checkpoint, NotMeasured)
    assert "lambda" in found.checkpoint.why
    assert isinstance(found.evaluation_seconds, NotMeasured)
    assert "a file is torn" in found.evaluation_seconds.why
    assert found.together.value > 0


class Slow(Dataset[Any]):
    """Busy with each sample."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(1, 6, 6), sum(range(20_000)) % 3


@pytest.mark.proof
def test_what_workers_take_and_what_they_begin_with_is_not_counted_for_a_step():
    found = profiled(job(train=Slow(), batch_size=8), make_plan(loader_workers=2))
    assert found.workers == 2
    assert found.loading_cpu > 0
    assert found.new_pages < 1_000  # those of a process that is forked are several thousand


def test_seconds_in_which_anything_runs_are_counted_once():
    assert covered([(3.0, 4.0), (0.0, 2.0), (1.0, 1.5), (1.0, 2.5)]) == 3.5
    with profile(activities=[ProfilerActivity.CPU]) as recorded, torch.profiler.record_function("of the user's"):
        torch.ones(400, 400) @ torch.ones(400, 400)
    events = recorded.events() or ()
    found = intervals(events, DeviceType.CPU)
    assert len(found) == len(events) - 1
    assert 0 < covered(found) < sum(end - begin for begin, end in found)  # an operation calls others
    assert intervals(events, DeviceType.CUDA) == []


@pytest.mark.gpu
def test_a_profile_of_a_device_measures_how_long_it_computes_and_what_its_memory_holds():
    found = profiled(job(device="cuda"))
    assert found.device_use is not None
    assert found.device_use.busy_seconds is not None
    assert 0 < found.device_use.busy_seconds < found.together.high
    assert found.device_use.reserved_bytes > 0
    assert found.device_use.retries == 0


def test_an_evaluation_of_unknown_seconds_is_noted_and_counts_in_no_share():
    unknown = replace(HEALTHY, evaluation_seconds=NotMeasured(why="it has no end"))
    assert found_in_run(unknown) == []
    assert unknown.epoch_seconds == pytest.approx(10.0)
    assert ("note", "the time of an evaluation is unknown: it has no end") in run_lines(unknown)
