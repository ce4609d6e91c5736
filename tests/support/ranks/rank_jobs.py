"""What the rank tests run on every rank; a module of its own, so that started processes can import it by name."""

from __future__ import annotations

import math
import shutil
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import hasten
from hasten.checkpoint.store import Store
from hasten.entry import prepare
from hasten.errors import DataFailed
from hasten.facts.events import Noticed
from hasten.facts.job import Loss
from hasten.facts.machine import ranks_here
from hasten.facts.plan import make_plan
from hasten.training.loop import train_run
from support import small_job
from support.data.loaders import Buckets
from support.training.collected_events import Collected
from support.training.schedule_free import ScheduleFreeSGD

IGNORED = -100


def token_job(**changes: Any) -> hasten.Job:
    """Rows of unequal weight: a third of all targets is ignored, unevenly over the batches."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(37, 6, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 3, (37,), generator=generator)
    target[torch.rand(37, generator=generator) < 0.3] = IGNORED
    target[:6] = IGNORED

    def loss(model: nn.Module, batch: Any) -> Loss:
        prediction = model(batch[0])
        losses = functional.cross_entropy(prediction, batch[1], ignore_index=IGNORED, reduction="none")
        auxiliary = 0.1 * prediction.square().mean(dim=1).mean()
        parts = {"first class": losses[batch[1] == 0].sum(), "others": losses[batch[1] > 0].sum()}
        return Loss(losses.sum(), (batch[1] != IGNORED).sum(), auxiliary, prediction, batch[1], parts)

    fields: dict[str, Any] = {
        "model": lambda: nn.Linear(6, 3).double(),
        "loss": loss,
        "train": (features, target),
        "valid": (features, target),
        "batch_size": 10,
        "shuffle": False,
        "metrics": {"accuracy": MulticlassAccuracy(3, average="micro", ignore_index=IGNORED)},
        "schedule": lambda optimizer, total_steps: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.4, total_steps=total_steps, cycle_momentum=False
        ),
        "clip_norm": 0.3,
    }
    return small_job(**(fields | changes))


def statistics_around_an_evaluation() -> list[list[torch.Tensor]]:
    """Of a batch norm, whose ranks have seen other rows in the last step: before an evaluation and after it."""
    model = lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))  # noqa: E731
    with prepare(small_job(model=model, valid=small_job().train)) as run:
        for batch in run.batches():
            run.step(batch)
        before = [each.clone() for each in run.model.buffers()]
        run.evaluate()
        return [before, [each.clone() for each in run.model.buffers()]]


def trained(microbatch: int | None = None, **changes: Any) -> dict[str, Any]:
    """A whole small run: final weights, every window's loss, the trace of rates, and an evaluation."""
    rates: list[float] = []
    plan = make_plan(microbatch=microbatch) if microbatch else None
    with prepare(token_job(**changes), plan) as run:
        for batch in run.batches():
            run.step(batch)
            if run.window_closed:
                rates.append(run.schedule.rates()[0])
        evaluation = run.evaluate()
        windows = run.losses.drain()
        return {
            "weights": [parameter.detach().clone() for parameter in run.model.parameters()],
            "losses": [window.mean for window in windows],
            "parts": [[*window.parts.values()] for window in windows],
            "rates": rates,
            "results": dict(evaluation.results),
        }


def trained_by_a_batch_sampler(microbatch: int | None = None) -> dict[str, Any]:
    """Of batches of 1 to 6 rows, so that one rank has no share of some."""
    rows = TensorDataset(*(part[:22] for part in token_job().train))
    data = DataLoader(rows, batch_sampler=Buckets())
    return trained(microbatch, train=data, valid=data, batch_size=None)


def parts_by_sample() -> list[dict[str, float]]:
    """The parts of every step, read after each. Six of 21 samples have a part of their own; the last batch has one."""
    rows = torch.arange(21.0)[:, None]

    def loss(model: nn.Module, batch: Any) -> Loss:
        (given,) = batch
        total, rare = model(given).square().sum(), given[given[:, 0] % 4 == 0]
        return Loss(total, len(given), parts={"both": total, **({"some": rare.sum()} if len(rare) else {})})

    found = []
    fields: dict[str, Any] = {"model": lambda: nn.Linear(1, 1), "loss": loss, "train": (rows,), "batch_size": 4}
    with prepare(token_job(**fields, valid=None, metrics={})) as run:
        for batch in run.batches():
            run.step(batch)
            found += [dict(window.parts) for window in run.losses.drain()]
    return found


class PartlyUsed(nn.Module):
    """`spare` is used never, for an output that the loss ignores, on every second call, or for some rows alone."""

    def __init__(self, use: str) -> None:
        super().__init__()
        self.main, self.spare, self.use, self.calls = nn.Linear(6, 3), nn.Linear(6, 3), use, 0

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.calls += 1
        out = self.main(rows)
        if self.use == "by the loss":
            return out, self.spare(rows)
        if self.use == "on some steps" and self.calls % 2:
            return out + self.spare(rows), None
        if self.use == "for some rows" and (chosen := rows[:, 0] > 0).any():
            return out.index_add(0, chosen.nonzero()[:, 0], self.spare(rows[chosen])), None
        return out, None


def trained_with_balance() -> list[torch.Tensor]:
    """The weights after a run whose auxiliary term reaches `spare` only through rows that the second rank lacks."""
    rows, labels = small_job().train
    rows[:, 0] = torch.where(torch.arange(40) % 8 < 4, 1.0, -1.0)

    def loss(model: nn.Module, batch: Any) -> Loss:
        out, _ = model(batch[0])
        chosen = batch[0][:, 0] > 0
        balance = model.main(batch[0]).square().mean()
        if chosen.any():
            balance = balance + model.spare(batch[0][chosen]).square().sum() / len(batch[0])
        return Loss(functional.cross_entropy(out, batch[1], reduction="sum"), len(batch[1]), balance)

    job = small_job(model=lambda: PartlyUsed("never"), loss=loss, train=(rows, labels), shuffle=False)
    with prepare(job) as run:
        for batch in run.batches():
            run.step(batch)
        return [parameter.detach().clone() for parameter in run.model.parameters()]


class InAnObject(nn.Module):
    """Returns what torch's own replica cannot look into."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, rows: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(scores=self.linear(rows))


def trained_through_an_object(calls: int) -> list[torch.Tensor]:
    """The weights after a run whose loss calls the model so often, on a part of the batch each time."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        scores = torch.cat([model(part).scores for part in batch[0].chunk(calls)])
        return functional.cross_entropy(scores, batch[1])

    with prepare(small_job(model=InAnObject, loss=loss, shuffle=False)) as run:
        for batch in run.batches():
            run.step(batch)
        return [parameter.detach().clone() for parameter in run.model.parameters()]


def trained_with_a_part_unused(use: str, microbatch: int | None = None) -> list[torch.Tensor]:
    """The weights after a run with momentum and weight decay; the second half of every batch has no chosen row."""
    rows, labels = small_job().train
    rows[:, 0] = torch.where(torch.arange(40) % 8 < 4, 1.0, -1.0)
    job = small_job(
        model=lambda: PartlyUsed(use),
        loss=lambda model, batch: functional.cross_entropy(model(batch[0])[0], batch[1]),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
        train=(rows, labels),
        shuffle=False,
    )
    with prepare(job, make_plan(microbatch=microbatch) if microbatch else None) as run:
        for batch in run.batches():
            run.step(batch)
        return [parameter.detach().clone() for parameter in run.model.parameters()]


def skipping_on_one_rank() -> dict[str, Any]:
    """fp16's scaling, and an infinity that only the last rank sees in the second update."""
    ranks = torch.distributed.get_world_size()
    rank = torch.distributed.get_rank()
    calls = 0

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        mean = functional.cross_entropy(model(batch[0]), batch[1])
        return mean * math.inf if calls == 2 and rank == ranks - 1 else mean

    with prepare(small_job(loss=loss, epochs=1)) as run:
        run.built.step.window.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for batch in run.batches():
            run.step(batch)
        return {
            "applied": run.built.step.skips.applied,
            "skipped": run.built.step.skips.skipped,
            "scale": run.built.step.window.scaler.get_scale(),
            "weights": [parameter.detach().clone() for parameter in run.model.parameters()],
        }


class PartlyDamaged(torch.utils.data.Dataset[Any]):
    """2000 samples, in batches of 500: the first rank of two reads the first half of each."""

    def __init__(self, bad: tuple[int, ...]) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise OSError(f"cannot read file {index}")
        return torch.full((6,), index / 2000), index % 3


def replaced_on_ranks(bad: tuple[int, ...], fails_at: int | None = None) -> dict[str, Any]:
    """Which samples this rank told as replaced, what ended it, and what its state and its error say of them."""
    collected, calls = Collected(), count(1)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if next(calls) == fails_at:
            raise ValueError("stops here")
        return functional.cross_entropy(model(batch[0]), batch[1])

    data = {"train": PartlyDamaged(bad), "batch_size": 500, "shuffle": False, "epochs": 1}
    job = small_job(**data, loss=loss, on_bad_sample="replace", log_every=1000)
    failed, notes = "", list[str]()
    with prepare(job) as run:
        try:
            train_run(run, collected)
        except (DataFailed, ValueError) as error:
            failed, notes = str(error), getattr(error, "__notes__", [])
        state = run.state_dict()["batches"]["replaced"]
    told = [event.text for event in collected.events if isinstance(event, Noticed) and "replaced" in event.text]
    return {"told": told, "failed": failed, "notes": notes, "state": state}


def ranks_on_this_machine() -> int:
    return ranks_here()


def averaged_and_resumed(folder: str, average: Any) -> dict[str, torch.Tensor]:
    """The weights that this rank keeps of `resumed`, a copy of the run `whole` as if that had been killed after step 5.
    Both are evaluated after each step."""
    model = lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))  # noqa: E731
    job = small_job(model=model, average=average, valid=small_job().train, evaluate_every=1)
    whole, resumed = Path(folder) / "whole", Path(folder) / "resumed"
    hasten.train(job, run_dir=whole, saving=hasten.Saving(every_steps=5, keep_every=5), receivers=[])
    if torch.distributed.get_rank() == 0:
        shutil.copytree(whole, resumed)
        (resumed / "model.safetensors").unlink()
        store = Store(resumed / "checkpoints")
        store.remove(next(each for each in store.found() if each.step == 10))
    torch.distributed.barrier()
    return dict(hasten.resume(job, run_dir=resumed, receivers=[]).weights)


def trained_schedule_free(choices: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights that are kept of a run that is evaluated after each epoch, and the loss of the last evaluation."""
    model = lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))  # noqa: E731
    job = small_job(model=model, optimizer=ScheduleFreeSGD, valid=small_job().train, shuffle=False)
    result = hasten.train(job, make_plan(**choices), receivers=[])
    return {**result.weights, "loss": torch.tensor(result.results["loss"])}


def calls_of_receivers() -> bool:
    """Whether this rank called a receiver of the job."""
    events = list[Any]()
    hasten.train(small_job(receivers=[events.append]), receivers=[])
    return bool(events)
