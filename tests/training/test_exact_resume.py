"""A run that goes on from its state, as a file holds it, is the run that was not interrupted: at every step, however
its data is read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

import hasten
from hasten.checkpoint.store import Store
from hasten.errors import Misconfigured
from support import small_job
from support.data.loaders import Buckets
from support.training.resumed_state import check_goes_on, losses, state_in_a_file

COUNT, BATCH = 22, 4  # six steps an epoch, of which the last is short; five with drop_last


def sample(index: int) -> tuple[Tensor, Tensor]:
    """One that is drawn anew whenever it is read, from all three generators."""
    row = torch.full((6,), float(index)) / COUNT
    row = row + torch.rand(6) + random.random() + float(np.random.rand())
    return row, torch.tensor(index % 3)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return sample(index)


class Stream(IterableDataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(sample, range(COUNT))


def job_of(kind: str, shuffle: bool, workers: int, drop_last: bool) -> hasten.Job:
    data = Stream() if kind == "iterable" else Rows()
    options: dict[str, Any] = {"shuffle": shuffle, "batch_size": BATCH, "drop_last": drop_last}
    options = {"map": options, "iterable": options | {"shuffle": None}, "batches": {"batch_sampler": Buckets()}}[kind]
    return small_job(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3)),
        loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda params: torch.optim.AdamW(params, lr=0.05),
        train=DataLoader(data, num_workers=workers, **options),
        batch_size=None,
        epochs=2,
    )


def check_every_step(job: hasten.Job, plan: hasten.Plan | None, store: Store) -> None:
    """Cut behind every step: the state goes through a file into a new run, in a process whose generators stand
    elsewhere, and that run is trained to its end."""
    with hasten.prepare(job, plan) as whole:
        wanted = losses(whole)
        final = whole.weights()
        parts = len(wanted) / whole.steps
    states: list[tuple[int, Any]] = []
    with hasten.prepare(job, plan) as cut:
        for done, batch in enumerate(cut.batches(), start=1):
            cut.step(batch)
            if cut.window_closed:
                states.append((done, state_in_a_file(cut, store)))
    assert len(states) == len(wanted) / parts == (10 if cut.loader.dropped_per_epoch else 12)
    for done, state in states:
        torch.manual_seed(done)
        random.seed(done)
        np.random.seed(done)
        with hasten.prepare(job, plan) as resumed:
            resumed.load_state_dict(state)
            assert losses(resumed) == wanted[done:]
            assert all(torch.equal(final[name], tensor) for name, tensor in resumed.weights().items())


# A stream has no order to shuffle, and is read by one worker at most. A batch sampler shuffles and drops as it will.
WAYS = [
    *itertools.product(["map"], [False, True], [0, 1, 2], [False, True], [1, 3]),
    *itertools.product(["iterable"], [False], [0, 1], [False, True], [1, 3]),
    *itertools.product(["batches"], [True], [0, 2], [False], [1, 3]),
]
SAMPLE = [
    ("map", True, 0, False, 3),
    ("iterable", False, 0, True, 1),
    ("batches", True, 0, False, 3),
]


def plan_of(accumulation: int) -> hasten.Plan | None:
    return hasten.make_plan(accumulation=accumulation) if accumulation > 1 else None


@pytest.mark.trap(36)
@pytest.mark.trap(15)
@pytest.mark.parametrize(("kind", "shuffle", "workers", "drop_last", "accumulation"), SAMPLE)
def test_a_run_goes_on_exactly_behind_every_step(tmp_path, kind, shuffle, workers, drop_last, accumulation):
    check_every_step(job_of(kind, shuffle, workers, drop_last), plan_of(accumulation), Store(tmp_path))


@pytest.mark.proof
@pytest.mark.parametrize(("kind", "shuffle", "workers", "drop_last", "accumulation"), WAYS)
def test_a_run_goes_on_exactly_behind_every_step_however_it_reads(
    tmp_path, kind, shuffle, workers, drop_last, accumulation
):
    check_every_step(job_of(kind, shuffle, workers, drop_last), plan_of(accumulation), Store(tmp_path))


@pytest.mark.trap(38)
def test_another_number_of_workers_goes_on_exactly(tmp_path):
    with hasten.prepare(job_of("map", True, 0, False)) as whole:
        wanted = losses(whole)
    with hasten.prepare(job_of("map", True, 2, False)) as cut:
        for batch in cut.batches():
            cut.step(batch)
            if cut.steps == 4:
                break
        state = state_in_a_file(cut, Store(tmp_path))
    with hasten.prepare(job_of("map", True, 1, False)) as resumed:
        resumed.load_state_dict(state)
        assert losses(resumed) == wanted[4:]


class Seeing(nn.Linear):
    """It counts in a buffer that its state_dict() leaves out, and draws from the global generators."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        self.seen += 1
        noise = torch.rand(rows.shape) + random.random() + float(np.random.rand())
        return super().forward(rows + noise) / self.seen


@pytest.mark.trap(36)
def test_a_small_buffer_that_no_state_dict_holds_and_global_generators_resume_exactly(tmp_path):
    def job() -> hasten.Job:
        random.seed(7)
        np.random.seed(7)
        return small_job(model=Seeing)

    check_goes_on(job, tmp_path, after=6)


@pytest.mark.trap(37)
@pytest.mark.parametrize("missing", ["model", "optimizers", "step", "schedule", "position", "random", "declared"])
def test_a_state_that_lacks_a_part_is_an_error(missing):
    with hasten.prepare(small_job()) as run:
        state = run.state_dict()
        del state[missing]
        with pytest.raises((KeyError, Misconfigured)):
            run.load_state_dict(state)


def test_a_state_of_another_model_is_refused_with_what_differs():
    with hasten.prepare(small_job()) as run:
        state = run.state_dict()
    other = hasten.prepare(small_job(model=lambda: nn.Linear(6, 3, bias=False)))
    with other, pytest.raises(Misconfigured, match="bias"):
        other.load_state_dict(state)


def test_an_optimizers_state_keeps_its_own_types(tmp_path):
    class Coarse(torch.optim.SGD):
        """Keeps bf16 and whole numbers for float32 parameters."""

        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    state["mean"] = parameter.detach().bfloat16()
                    state["moves"] = state.get("moves", torch.zeros((), dtype=torch.int64)) + 1

    job = small_job(optimizer=lambda params: Coarse(params, lr=0.1))
    with hasten.prepare(job) as run:
        losses(run)
        state = state_in_a_file(run, Store(tmp_path))
    with hasten.prepare(job) as resumed:
        resumed.load_state_dict(state)
        kept = next(iter(resumed.optimizers[0].state.values()))
        assert (kept["mean"].dtype, kept["moves"].dtype) == (torch.bfloat16, torch.int64)
