"""Rates, momenta and counts that no step can use are refused before they are used, and the step before is saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, LinearLR, OneCycleLR

import hasten
from faults.commands import jobs_in, ran
from hasten.errors import JobError, PlanError
from hasten.facts.events import Saved, Trained
from support import small_job
from support.training.collected_events import Collected

STEPS = 10
JOBS = """
import math
import hasten
from torch.optim.lr_scheduler import LambdaLR
from support import small_job

def by(rule):
    return small_job(schedule=hasten.Schedule(lambda optimizer: LambdaLR(optimizer, rule), unit="step"))

def complex_rate():
    return by(lambda step: (1 - step / 4) ** 0.9)

def nan_rate():
    return by(lambda step: math.nan if step == 5 else 1.0)

def negative_rate():
    return by(lambda step: 4.5 - step)

def infinite_rate():
    return by(lambda step: math.inf if step == 5 else 1.0)

def huge_rate():
    return by(lambda step: 1e200 if step == 5 else 1.0)
"""
WRONG_RATES = {  # what is shown, of the sixth step
    "complex_rate": "(-0.0",
    "nan_rate": "nan",
    "negative_rate": "-0.05",
    "infinite_rate": "inf",
    "huge_rate": "1e+199",
}


def by(rule: Callable[[int], Any], unit: Any = "step") -> hasten.Schedule:
    return hasten.Schedule(lambda optimizer: LambdaLR(optimizer, rule), unit=unit)


def refused(
    folder: Path, kind: type[hasten.HastenError] = JobError, plan: Any = None, **changes: Any
) -> tuple[Any, int]:
    """The error of a run, and the step that was saved before it ended the run."""
    events = Collected()
    with pytest.raises(kind) as caught:
        hasten.train(small_job(**changes), plan, run_dir=folder / "run", receivers=[events])
    return caught.value, [each.step for each in events.events if isinstance(each, Saved)][-1]


@pytest.mark.parametrize(
    "job",
    ["complex_rate", *(pytest.param(each, marks=pytest.mark.proof) for each in WRONG_RATES if each != "complex_rate")],
)
def test_a_schedules_rate_is_refused_with_its_value_group_and_step(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    jobs_in(tmp_path, JOBS, monkeypatch)
    code, error = ran("train", f"faulty_jobs.py:{job}", "--run-dir", "run")
    assert code == 2
    assert f"Job.schedule: gives optimizer step 6 the learning rate {WRONG_RATES[job]}" in error
    assert "(parameter group 0 of SGD)" in error
    assert "step 5 is saved and verified" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("job", WRONG_RATES)
def test_a_schedule_that_is_shown_is_refused_in_the_same_words(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    jobs_in(tmp_path, JOBS, monkeypatch)
    code, error = ran("schedule", f"faulty_jobs.py:{job}")
    assert code == 2
    assert f"Job.schedule: gives optimizer step 6 the learning rate {WRONG_RATES[job]}" in error


@pytest.mark.parametrize("length", [3, 5, 6, 10])
def test_a_schedule_that_ends_at_zero_but_for_rounding_is_trained_to_its_end(length: int):
    def falling(optimizer: torch.optim.Optimizer) -> Any:
        return LinearLR(optimizer, end_factor=0.0, total_iters=length)

    assert hasten.train(small_job(schedule=hasten.Schedule(falling, unit="step"), epochs=3), receivers=[]).steps == 15


def test_a_run_that_was_refused_goes_on_with_a_corrected_schedule(tmp_path: Path):
    def rule(step: int) -> float:
        return max(0.0, 1 - step / 4) ** 0.9

    refused(tmp_path, schedule=by(lambda step: (1 - step / 4) ** 0.9))
    resumed, whole = Collected(), Collected()
    hasten.resume(small_job(schedule=by(rule)), run_dir=tmp_path / "run", receivers=[resumed])
    hasten.train(small_job(schedule=by(rule)), receivers=[whole])

    def rates(events: Collected) -> list[float]:
        return [each.learning_rate for each in events.events if isinstance(each, Trained) and each.step > 5]

    assert rates(resumed) == rates(whole)


@pytest.mark.parametrize(
    "rule", [lambda step: 0.0, lambda step: step / 4, lambda step: np.float64(step), lambda step: 1]
)
def test_zero_and_other_numbers_are_rates(rule: Callable[[int], Any]):
    assert hasten.train(small_job(schedule=by(rule)), receivers=[]).steps == STEPS


def test_a_rate_that_no_step_would_use_is_no_fault():
    def rule(step: int) -> float:
        return math.nan if step == STEPS else 1.0

    assert hasten.train(small_job(schedule=by(rule)), receivers=[]).steps == STEPS


def test_a_schedule_of_epochs_is_looked_at_too(tmp_path: Path):
    error, saved = refused(tmp_path, schedule=by(lambda epoch: 1.0 if epoch == 0 else -1.0, "epoch"))
    assert error.what == "gives optimizer step 6 the learning rate -0.1 (parameter group 0 of SGD)"
    assert saved == 5


def test_a_plans_schedule_is_blamed_for_its_rates(tmp_path: Path):
    plan = hasten.make_plan(schedule=("ExponentialLR", {"gamma": -1.0, "unit": "step"}))
    error, saved = refused(tmp_path, PlanError, plan)
    assert error.where == "schedule"
    assert error.what == "gives optimizer step 2 the learning rate -0.1 (parameter group 0 of SGD)"
    assert saved == 1


@pytest.mark.parametrize("made", [lambda p: torch.optim.SGD(p, lr=math.inf), lambda p: torch.optim.Adam(p, lr=1e38)])
def test_a_rate_that_an_optimizer_is_built_with_is_refused_at_the_first_step(made: Any):
    with pytest.raises(JobError, match=r"gives optimizer step 1 the learning rate (inf|1e\+38)") as caught:
        hasten.train(small_job(optimizer=made), receivers=[])
    assert caught.value.where == "Job.optimizer"


def one_group_more(parameters: Any) -> torch.optim.Optimizer:
    weight, bias = parameters
    return torch.optim.SGD([{"params": [weight]}, {"params": [bias], "lr": 0.5}], lr=0.1, momentum=0.9)


def test_the_group_is_named(tmp_path: Path):
    rules: list[Callable[[int], float]] = [lambda step: 1.0, lambda step: -1.0 if step == 3 else 1.0]
    schedule = hasten.Schedule(lambda optimizer: LambdaLR(optimizer, rules), unit="step")
    error, saved = refused(tmp_path, optimizer=one_group_more, schedule=schedule)
    assert error.what == "gives optimizer step 4 the learning rate -0.5 (parameter group 1 of SGD)"
    assert saved == 3


SET_BY_HAND: dict[str, tuple[str, Any, str]] = {
    "rate": ("lr", math.nan, "learning rate nan"),
    "whole rate": ("lr", -1, "learning rate -1"),
    "rate beyond all": ("lr", 10**400, "learning rate 1000"),
    "rate as a text": ("lr", "0.1", "learning rate '0.1'"),
    "rate in NumPy's type": ("lr", np.float32(math.nan), "learning rate"),
    "complex rate in NumPy's type": ("lr", np.complex128(1j), "learning rate"),
    "rate in a tensor": ("lr", torch.tensor(math.nan), "learning rate nan"),
}


@pytest.mark.parametrize("wrong", SET_BY_HAND)
def test_what_is_set_by_hand_is_looked_at_in_the_same_place(wrong: str):
    key, value, said = SET_BY_HAND[wrong]
    with hasten.prepare(small_job()) as run:
        before: dict[str, torch.Tensor] = {}
        with pytest.raises(JobError) as caught:
            for number, batch in enumerate(run.batches(), 1):
                if number == 4:
                    run.optimizers[0].param_groups[0][key] = value
                    before = {name: each.clone() for name, each in run.model.state_dict().items()}
                run.step(batch)
        assert f"gives optimizer step 4 the {said}" in caught.value.what
        assert run.steps == 3
        assert all(torch.equal(each, before[name]) for name, each in run.model.state_dict().items())


def test_an_optimizer_without_a_rate_and_one_that_cycles_momentum_train():
    class Plain(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, lr=0.1)
            for group in self.param_groups:
                group["momentum"] = None

        def step(self, closure: Any = None) -> None:
            for each in (each for group in self.param_groups for each in group["params"]):
                each.data -= 0.1 * each.grad

    assert hasten.train(small_job(optimizer=Plain), receivers=[]).steps == STEPS
    cycling = hasten.Schedule(lambda optimizer, total_steps: OneCycleLR(optimizer, 0.1, total_steps), unit="step")
    adam = small_job(optimizer=lambda p: torch.optim.Adam(p, lr=1e-3), schedule=cycling)
    assert hasten.train(adam, receivers=[]).steps == STEPS


class Counting:
    """A loss whose fourth count in training is another."""

    def __init__(self, count: Any) -> None:
        self.count, self.calls = count, 0

    def __call__(self, model: nn.Module, batch: Any) -> hasten.Loss:
        total = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        self.calls += 1
        return hasten.Loss(total, self.count if self.calls == 4 else len(batch[1]))


WRONG_COUNTS: dict[str, tuple[Any, str]] = {
    "negative": (-8, "returned the count -8"),
    "negative, a fraction": (-0.5, "returned the count -0.5"),
    "NaN": (math.nan, "returned the count nan"),
    "infinite": (math.inf, "returned the count inf"),
    "complex": (8j, "returned a count that is"),
    "a text": ("8", "returned a count that is"),
    "None": (None, "returned a count that is"),
    "a negative tensor": (torch.tensor(-8), "returned the count -8"),
    "a tensor of NaN": (torch.tensor(math.nan), "returned the count nan"),
    "a tensor of another shape": (torch.full((8,), 1), "returned a count of shape (8,)"),
    "a tensor of one number": (torch.full((1,), 8), "returned a count of shape (1,)"),
}


@pytest.mark.parametrize("wrong", WRONG_COUNTS)
@pytest.mark.parametrize("microbatch", [None, pytest.param(2, marks=pytest.mark.proof)])
def test_a_count_is_refused_in_the_step_that_would_use_it(wrong: str, microbatch: int | None, tmp_path: Path):
    count, said = WRONG_COUNTS[wrong]
    step = 4 if microbatch is None else 1
    plan = None if microbatch is None else hasten.make_plan(microbatch=microbatch)
    events = Collected()
    with pytest.raises(JobError) as caught:
        hasten.train(small_job(loss=Counting(count)), plan, run_dir=tmp_path / "run", receivers=[events])
    assert caught.value.where == "Job.loss"
    assert caught.value.what.startswith(said)
    assert caught.value.what.endswith(f"at optimizer step {step}")
    assert [each.step for each in events.events if isinstance(each, Saved)][-1:] == ([3] if step == 4 else [])


def test_a_count_in_an_evaluation_is_refused():
    def loss(model: nn.Module, batch: Any) -> hasten.Loss:
        total = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return hasten.Loss(total, len(batch[1]) if model.training else -1)

    with pytest.raises(JobError, match="returned the count -1"):
        hasten.train(small_job(loss=loss, valid=small_job().train), receivers=[])


@pytest.mark.parametrize("nothing", [0, 0.0, torch.tensor(0), torch.tensor(0.0)], ids=str)
def test_a_count_of_nothing_weighs_nothing(nothing: Any):
    def weights(loss: Any) -> dict[str, torch.Tensor]:
        return dict(hasten.train(small_job(loss=loss), hasten.make_plan(microbatch=4), receivers=[]).weights)

    assert all(bool(each.isfinite().all()) for each in weights(Counting(nothing)).values())
