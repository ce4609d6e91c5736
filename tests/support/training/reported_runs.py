"""Runs for tests of public reports: what each step had, interruptions, and the same training in plain torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

import hasten
from hasten.facts.events import Evaluated, Trained
from support import small_job
from support.training.collected_events import Collected
from support.training.saved_runs import check_same


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return [each for part in lists for each in part]


class Interrupted(Exception):
    pass


class Numbers(Dataset[Any]):
    """Sample i is the number i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index)])


class Stream(IterableDataset[Any]):
    """The same one after the other, which nobody divides over workers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor([float(number)]) for number in range(self.count))


def samples_of_steps(
    folder: Path, cuts: tuple[int, ...] = (), saves: int | None = None, fresh: Any = dict, **changes: Any
) -> list[list[int]]:
    """What each step of a run had. cuts: it is interrupted when so many steps are done, and resumed. fresh: makes those
    fields of the job that each process makes by itself."""
    done: list[list[int]] = []
    for cut in (*cuts, None):

        def loss(model: nn.Module, batch: Tensor, cut: int | None = cut) -> Tensor:
            if len(done) == cut:
                raise Interrupted
            done.append([int(number) for number in batch.flatten()])
            return 1e-4 * model(batch).square().mean()

        fields = (
            {"model": lambda: nn.Linear(1, 1), "train": Numbers(12), "batch_size": 4, "loss": loss} | changes | fresh()
        )
        try:
            hasten.resume(small_job(**fields), run_dir=folder, saving=hasten.Saving(every_steps=saves), receivers=[])
            assert cut is None
        except Interrupted:
            pass
    return done


def check_resumes(folder: Path, cuts: tuple[int, ...], plan: Any = None, fresh: Any = dict, **changes: Any) -> None:
    """A run that is interrupted when so many steps are done has the losses, rates, evaluations and weights of one that
    is not, to the bit. fresh: makes those fields of the job that each process makes by itself."""
    for name, places in (("whole", (None,)), ("cut", (*cuts, None))):
        for cut in places:
            steps = cut and cut - max((each for each in cuts if each < cut), default=0)
            _until(steps, folder / name, plan, {"log_every": 1} | changes | fresh())
    check_same(folder / "cut", folder / "whole")


def _until(steps: int | None, folder: Path, plan: Any, changes: dict[str, Any]) -> None:
    own, left = small_job(**changes).loss, [steps]

    def loss(model: nn.Module, batch: Any) -> Any:
        if model.training and left[0] is not None:
            left[0] -= 1
            if left[0] < 0:
                raise Interrupted
        return own(model, batch)

    try:
        hasten.resume(small_job(**changes | {"loss": loss}), plan, run_dir=folder, receivers=[])
        assert steps is None
    except Interrupted:
        pass


def trained(plan: Any = None, **changes: Any) -> tuple[hasten.Result, list[Trained], list[Evaluated]]:
    """A run's result, its steps and its evaluations."""
    collected = Collected()
    result = hasten.train(small_job(**{"log_every": 1} | changes), plan, receivers=[collected])
    found = collected.events
    return result, [e for e in found if isinstance(e, Trained)], [e for e in found if isinstance(e, Evaluated)]


def zeros() -> nn.Module:
    """The model of `plain_weights`, which begins alike everywhere."""
    model = nn.Linear(6, 3)
    for each in model.parameters():
        nn.init.zeros_(each)
    return model


IN_ORDER: dict[str, Any] = {"model": zeros, "shuffle": False}


def plain_weights(epochs: int = 2, make: Any = zeros, **sgd: Any) -> list[dict[str, Tensor]]:
    """The weights and buffers after each update of small_job(**IN_ORDER), by a loop in plain torch."""
    model, found = make(), []
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.1} | sgd)
    for _ in range(epochs):
        for rows, labels in zip(*(part.split(8) for part in small_job().train), strict=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            found.append({name: each.clone() for name, each in model.state_dict().items()})
    return found


def assert_weights(found: Any, wanted: Any, **tolerance: Any) -> None:
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each.detach(), **tolerance)
