"""Jobs that are not the same on each rank, as the ranks of one process group build them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler

import hasten
from hasten.errors import HastenError
from hasten.facts.plan import Plan, make_plan
from support import small_job
from support.ranks.rank_jobs import token_job

ROWS, LABELS = small_job().train
Built = tuple[hasten.Job, Plan | None]


class Numbered(Dataset[Any]):
    """Reads its samples from elsewhere, so that only its length is known."""

    def __init__(self, length: int, folder: str = "") -> None:
        self.length, self.folder, self.read = length, folder, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index >= self.length:
            raise IndexError(index)
        self.read += 1
        return ROWS[index % 40], LABELS[index % 40]


class Holding(Numbered):
    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__(len(rows))
        self.rows = rows


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([*zip(ROWS, LABELS, strict=True)])


def _with_buffer() -> nn.Module:
    model = nn.Linear(6, 3)
    model.register_buffer("scale", torch.ones(3))
    return model


def _partly_frozen() -> nn.Module:
    model = nn.Linear(6, 3)
    model.bias.requires_grad_(False)
    return model


def _drawn(seed: int) -> torch.Tensor:
    return torch.randn(40, 6, generator=torch.Generator().manual_seed(seed))


def _job(**fields: Any) -> Callable[[], Built]:
    return lambda: (small_job(**fields), None)


def _planned(**choices: Any) -> Callable[[], Built]:
    return lambda: (small_job(), make_plan(**choices))


def _sampling(rows: Any) -> DataLoader[Any]:
    return DataLoader(Numbered(40), batch_size=8, sampler=SubsetRandomSampler([*rows]))


STREAM = {"train": Stream(), "epochs": None}
SHARD = {"shard": "zero3"}

KINDS: dict[str, tuple[Callable[[], Built], Callable[[], Built], str]] = {
    # what differs: (on rank 0, on rank 1, what the refusal says)
    "length": (_job(train=Numbered(40)), _job(train=Numbered(32)), "train is 40 samples"),
    "length in memory": (_job(), _job(train=(ROWS[:32], LABELS[:32])), "train is 40 samples"),
    "length of valid": (_job(valid=Numbered(8)), _job(valid=Numbered(9)), "valid is 8 samples"),
    "values": (_job(), _job(train=(_drawn(2), LABELS)), "train is 40 samples (values "),
    "values in a data set": (_job(train=Holding(ROWS)), _job(train=Holding(_drawn(2))), "train is 40 samples (values "),
    "rows that a loader samples": (
        lambda: (small_job(train=_sampling(range(20)), batch_size=None), None),
        lambda: (small_job(train=_sampling(range(20, 40)), batch_size=None), None),
        "train is 20 samples (values ",
    ),
    "a stream on one": (_job(**STREAM, max_steps=5), _job(max_steps=5, epochs=None), "train is no length"),
    "shapes": (_job(), _job(model=lambda: nn.Linear(6, 4)), "parameter weight is [3, 6] float32 on rank 0, [4, 6]"),
    "dtypes": (_job(), _job(model=lambda: nn.Linear(6, 3).double()), "float32 on rank 0, [3, 6] float64 on rank 1"),
    "names": (
        _job(),
        _job(model=lambda: nn.Sequential(nn.Linear(6, 3))),
        "parameter weight is [3, 6] float32 on rank 0, absent on rank 1",
    ),
    "buffers": (_job(), _job(model=_with_buffer), "buffer scale is absent on rank 0, [3] float32 on rank 1"),
    "frozen": (
        _job(),
        _job(model=_partly_frozen),
        "parameter bias is [3] float32 on rank 0, [3] float32, frozen on rank 1",
    ),
    "shapes in parts": (
        lambda: (small_job(), make_plan(**SHARD)),
        lambda: (small_job(model=lambda: nn.Linear(6, 4)), make_plan(**SHARD)),
        "parameter weight is [3, 6] float32 on rank 0, [4, 6]",
    ),
    "batch size": (_job(), _job(batch_size=16), "batch_size is 8 on rank 0, 16 on rank 1"),
    "epochs": (_job(), _job(epochs=3), "epochs is 2 on rank 0, 3 on rank 1"),
    "max_steps": (_job(), _job(max_steps=4), "max_steps is None on rank 0, 4 on rank 1"),
    "evaluate_every": (
        _job(valid=(ROWS, LABELS)),
        _job(valid=(ROWS, LABELS), evaluate_every=2),
        "evaluate_every is None on rank 0, 2 on rank 1",
    ),
    "valid on one": (_job(valid=(ROWS, LABELS)), _job(), "on rank 0, absent on rank 1"),
    "seed": (_job(), _job(seed=1), "seed is 0 on rank 0, 1 on rank 1"),
    "clipping": (_job(clip_norm=1.0), _job(), "clip_norm is 1.0 on rank 0, None on rank 1"),
    "average": (_job(), _job(average=hasten.EqualAverage()), "average is None on rank 0"),
    "metrics": (
        lambda: (token_job(), None),
        lambda: (token_job(metrics={}), None),
        "metrics is ['accuracy'] on rank 0",
    ),
    "loss": (_job(), _job(loss=hasten.supervised(nn.functional.cross_entropy)), "loss is small_job"),
    "plan": (_planned(microbatch=2), _planned(microbatch=1), "plan.microbatch is {'value': 2} on rank 0"),
    "plan on one": (_planned(), _planned(microbatch=1), "plan.microbatch is absent on rank 0"),
    "parts on one": (_planned(**SHARD), _planned(), "plan.shard is {'value': 'zero3'} on rank 0, absent on rank 1"),
    "made by the first on one": (
        _planned(shard=("zero3", {"meta": True})),
        _planned(**SHARD),
        "plan.shard is {'value': 'zero3', 'meta': True} on rank 0",
    ),
}


def refusals() -> dict[str, list[Any]]:
    """By the kind of difference: the exit code and the words that end this rank; nothing where it could be built."""
    rank, found = dist.get_rank(), dict[str, list[Any]]()
    for kind, (*built, _) in KINDS.items():
        try:
            job, plan = built[rank]()
            hasten.prepare(job, plan).close()
            found[kind] = []
        except HastenError as error:
            found[kind] = [error.exit_code, type(error).__name__, error.what]
    return found


def trained_with_what_may_differ() -> list[torch.Tensor]:
    """Where a rank keeps its files, and what its data set has counted."""
    rank = dist.get_rank()
    data = Numbered(40, folder=f"/scratch/{rank}")
    data.read = rank
    result = hasten.train(small_job(train=data), receivers=[])
    return [*result.weights.values()]
