"""Runs that save in parts, watched for what that takes; a module of its own, so that started processes can import it by
name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hasten
from hasten.checkpoint.sharded.rank_files import Pieced
from hasten.errors import StorageFailed
from hasten.facts.events import Noticed
from hasten.facts.plan import make_plan
from hasten.parallel.collectives import present_ranks
from hasten.training.saving import follower_saver, saver
from hasten.training.saving.checkpointing import Checkpointing
from hasten.training.state.sharded_state import whole_state
from support import small_job
from support.training.collected_events import Collected

WIDTH = 96
WHOLE = 2 * WIDTH * WIDTH * 8  # bytes of its largest matrices


class Allocations(TorchDispatchMode):
    """largest: bytes of the largest memory that an operation inside gave which it was not given."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {each._cdata for each in _memories((args, kwargs))}
        found = func(*args, **(kwargs or {}))
        new = [each.nbytes() for each in _memories(found) if each._cdata not in given]
        self.largest = max([self.largest, *new])
        return found


def _memories(tree: Any) -> Iterator[Any]:
    for each in tree_leaves(tree):
        if isinstance(each, Tensor):
            local = getattr(each, "_local_tensor", each)
            yield getattr(local, "elem", local).untyped_storage()  # of one that is still on its way


def wide_job() -> hasten.Job:
    """Four steps."""
    rows = torch.randn(8, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    data = rows, torch.zeros(8, dtype=torch.int64)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def made() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)).double()

    return small_job(model=made, loss=loss, train=data, valid=None, batch_size=4, epochs=2, optimizer=torch.optim.AdamW)


def allocated(folder: str, choices: Mapping[str, Any]) -> dict[str, Any]:
    """By this rank, in each of its threads, while checkpoints are saved: the largest memory. And what is allocated
    where the same state is made whole."""
    found = dict[str, list[int]](training=[], writing=[], whole=[])
    _watch(Checkpointing, "_save", found["training"])
    _watch(saver.Saver, "_write", found["writing"])
    _watch(follower_saver, "follow", found["writing"])
    hasten.train(wide_job(), make_plan(**choices), run_dir=folder, saving=hasten.Saving(every_steps=1), receivers=[])
    with hasten.prepare(wide_job(), make_plan(**choices)) as run:
        for batch in run.batches():
            run.step(batch)
        with _seen(found["whole"]):
            whole_state(run.state_dict(), run.built.strategy.sharding, run.ranks)
    return found


@contextmanager
def _seen(largest: list[int]) -> Iterator[None]:
    with Allocations() as allocations:
        yield
    largest.append(allocations.largest)


def _watch(owner: Any, name: str, largest: list[int]) -> None:
    function: Callable[..., Any] = getattr(owner, name)

    def watched(*given: Any, **options: Any) -> Any:
        with _seen(largest):
            return function(*given, **options)

    setattr(owner, name, watched)


def read_to_go_on(folder: str, choices: Mapping[str, Any]) -> list[int]:
    """Bytes of the largest part that this rank reads of tensors in pieces, when the run goes on, and of all of them."""
    read, region = list[int](), Pieced.region

    def noted(self: Pieced, offsets: Any, shape: Any) -> Tensor:
        found = region(self, offsets, shape)
        read.append(found.nbytes)
        return found

    Pieced.region = noted
    hasten.resume(wide_job(), make_plan(**choices), run_dir=folder, receivers=[])
    return [max(read), sum(read)]


def saved_without_a_log(folder: str, choices: Mapping[str, Any]) -> list[Any]:
    """What is told of a run whose leader finds no room for its log when the second checkpoint is due."""
    saves, told, taken = count(1), Collected(), Checkpointing._save

    def refused() -> int:
        raise StorageFailed("no room for the log", where=folder)

    def save(self: Checkpointing, *given: Any) -> None:
        log_bytes, number = self._log_bytes, next(saves)
        if number == 2 and present_ranks().leads:
            self._log_bytes = refused
        taken(self, *given)
        self._log_bytes = log_bytes

    Checkpointing._save = save
    saving = hasten.Saving(every_steps=1, keep_every=1)
    hasten.train(wide_job(), make_plan(**choices), run_dir=folder, saving=saving, receivers=[told])
    return [event.text for event in told.events if isinstance(event, Noticed) and "could not be saved" in event.text]
