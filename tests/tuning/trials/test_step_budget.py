"""Where a trial's seconds go: each second in one part, and a trial that trains on as if nobody had looked."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hasten.facts.plan import Plan, make_plan
from hasten.facts.trials import Budget
from hasten.measure.process_memory import Fault
from hasten.tuning.search.bounds import Around
from hasten.tuning.trials import step_budget as module
from hasten.tuning.trials.step_budget import step_budget
from hasten.tuning.trials.trial import Trial
from support import small_job

PARTS = ("data_wait", "transfer", "forward", "backward", "optimizer", "python")


class Clock:
    """Time that passes only where a job of a test says so, in whole seconds."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(time, "perf_counter", lambda: self.now)


class Samples(Dataset):
    """1 s to read each."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.clock.now += 1
        return torch.full((6,), float(index)) / 40, index % 3


class Batch:
    """6 s to put on its device."""

    def __init__(self, samples: list[tuple[Tensor, int]], clock: Clock) -> None:
        self.rows = torch.stack([row for row, _ in samples])
        self.labels = torch.tensor([label for _, label in samples])
        self.clock = clock

    def to(self, device: Any) -> Batch:
        self.clock.now += 6
        return self


class Model(nn.Module):
    """2 s a forward pass and 5 s a backward pass."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.first, self.second = clock, nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        self.clock.now += 2
        return self.second(Passing.apply(self.first(rows), self.clock))


class Passing(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor, clock):
        context.clock = clock
        return tensor.clone()

    @staticmethod
    def backward(context, gradient):
        context.clock.now += 5
        return gradient, None


class Slow(torch.optim.SGD):
    """7 s an update."""

    def __init__(self, parameters, clock: Clock) -> None:
        super().__init__(parameters, lr=0.01)
        self.clock = clock

    def step(self, closure=None):
        self.clock.now += 7
        return super().step(closure)


def slow_job(clock: Clock, **changes: Any):
    """8 samples a batch, 5 steps an epoch; the loss itself takes 3 s."""

    def loss(model, batch):
        clock.now += 3
        return nn.functional.cross_entropy(model(batch.rows), batch.labels)

    fields: dict[str, Any] = {
        "model": lambda: Model(clock),
        "loss": loss,
        "optimizer": lambda params: Slow(params, clock),
        "train": Samples(clock),
        "collate": lambda samples: Batch(samples, clock),
    }
    return small_job(**(fields | changes))


def spent_by(clock: Clock, plan: Plan | None = None, steps: int = 2, **changes: Any) -> dict[str, float]:
    """Within the first epoch, as the two steps before it warm up."""
    trial = Trial(slow_job(clock, **changes), plan or Plan(), "slow")
    try:
        return step_budget(trial, steps)["spent"]
    finally:
        trial.close()


def parts(spent: dict[str, float]) -> list[float]:
    return [spent[part] for part in PARTS]


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    ("plan", "seconds"),
    [
        (Plan(), [8, 0, 5, 5, 7, 0]),
        (make_plan(channels_last=True), [8, 6, 5, 5, 7, 0]),  # putting a batch on the device is no wait for data
        (make_plan(microbatch=4), [8, 0, 10, 10, 7, 0]),
    ],
    ids=["plain", "transfer", "microbatches"],
)
def test_every_second_of_a_step_is_in_the_part_that_it_was_spent_in(clock, plan, seconds):
    assert parts(spent_by(clock, plan)) == seconds


def test_the_turn_of_an_epoch_is_in_no_part(clock):
    spent = spent_by(clock, make_plan(channels_last=True), steps=8, epochs=3)
    # Three of the first epoch, and five of the next.
    assert parts(spent) == [7, 5.25, 5, 5, 7, 0]


def test_an_evaluation_is_timed_as_a_whole_and_is_in_no_step(clock):
    spent = spent_by(clock, valid=Samples(clock))
    assert spent["evaluation"] == 40 + 5 * (6 + 3 + 2)
    assert parts(spent) == [8, 0, 5, 5, 7, 0]


class Remembering(Trial):
    """Keeps what its last window said."""

    def window(self, steps):
        self.last = super().window(steps)
        return self.last


@pytest.mark.parametrize("plan", [Plan(), make_plan(microbatch=3, clipping=1.0)], ids=["plain", "planned"])
def test_the_parts_add_up_to_the_step_that_the_window_saw(plan):
    rows = [(torch.randn(6), number % 3) for number in range(40)]
    trial = Remembering(small_job(train=rows, valid=rows, epochs=3), plan, "small")
    found = step_budget(trial, 7)["spent"]
    budget = Budget(arm="plain", **found)
    trial.close()
    assert budget.steps == trial.last["steps"] == 7
    assert all(getattr(budget, part) >= 0 for part in PARTS)
    assert min(budget.forward, budget.backward, budget.optimizer, budget.evaluation) > 0
    assert budget.step == pytest.approx(trial.last["seconds"] / 7, rel=1e-9)


@pytest.mark.trap(47)
def test_a_trial_trains_on_as_if_nobody_had_looked():
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(40, 6, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    settings = {
        "model": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)),
        "train": data,
        "valid": data,
        "epochs": 4,
    }
    alone = Trial(small_job(**settings), Plan(), "small")
    whole = alone.window(15)["losses"]
    alone.close()
    watched = Trial(small_job(**settings), Plan(), "small")
    before = watched.window(4)["losses"]
    step_budget(watched, 3)
    after = watched.window(7)["losses"]
    watched.close()
    assert (before, after) == (whole[:4], whole[7:14])  # three are timed


@pytest.mark.parametrize(("plan", "beside"), [(Plan(), False), (make_plan(loader_workers=1), True)], ids=str)
def test_what_bounds_depend_on_beside_the_budget_is_measured(plan, beside, monkeypatch):
    taken = list[int]()
    monkeypatch.setattr(module, "page_faults", lambda: 10 + 6 * len(taken))
    monkeypatch.setattr(module, "fault_cost", lambda: Fault(seconds=0.5, bytes=4096))
    rows = [(torch.randn(6), number % 3) for number in range(40)]
    trial = Trial(small_job(train=rows), plan, "small")
    update = trial.run.built.step.update
    monkeypatch.setattr(trial.run.built.step, "update", lambda: (taken.append(1), update()))
    found = Around(**step_budget(trial, 3)["around"])
    trial.close()
    assert found == Around(
        on_cpu=trial.run.device.type == "cpu",
        cores=trial.run.setup.machine.cores,
        reads_beside=beside,
        fault_seconds=3.0,
    )


@pytest.mark.gpu
def test_on_an_accelerator_too_the_parts_add_up_and_the_copy_is_seen():
    trial = Remembering(small_job(device="cuda"), Plan(), "small")
    budget = Budget(arm="plain", **step_budget(trial, 5)["spent"])
    trial.close()
    assert min(budget.transfer, budget.forward, budget.backward, budget.optimizer) > 0
    assert budget.step == pytest.approx(trial.last["seconds"] / 5, rel=1e-9)
