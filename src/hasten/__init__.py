"""hasten makes PyTorch training fast, and proves it.

Names load on first use, so that `import hasten` and the command line's help do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.checkpoint.plan_output import write_plan
    from hasten.data.images.crops import CenterCrop, RandomResizedCrop
    from hasten.data.images.image_folder import ImageFolder
    from hasten.data.shards.shard_dataset import Shards
    from hasten.data.sources.augmented import Augmented
    from hasten.entry import prepare, resume, train
    from hasten.facts.job import EarlyStopping, EqualAverage, ExponentialAverage, Job, Loss, Schedule
    from hasten.facts.plan import Plan, make_plan
    from hasten.facts.plan_file import read_plan
    from hasten.facts.saving import Saving
    from hasten.training.loop import Result
    from hasten.training.run import Run
    from hasten.training.step import Step
    from hasten.training.step_parts.supervised import supervised
    from hasten.training.weights.weights_file import read_weights

_HOMES = {
    "Augmented": "hasten.data.sources.augmented",
    "CenterCrop": "hasten.data.images.crops",
    "EarlyStopping": "hasten.facts.job",
    "EqualAverage": "hasten.facts.job",
    "ExponentialAverage": "hasten.facts.job",
    "ImageFolder": "hasten.data.images.image_folder",
    "Job": "hasten.facts.job",
    "Loss": "hasten.facts.job",
    "Plan": "hasten.facts.plan",
    "RandomResizedCrop": "hasten.data.images.crops",
    "Result": "hasten.training.loop",
    "Run": "hasten.training.run",
    "Schedule": "hasten.facts.job",
    "Shards": "hasten.data.shards.shard_dataset",
    "Step": "hasten.training.step",
    "make_plan": "hasten.facts.plan",
    "prepare": "hasten.entry",
    "resume": "hasten.entry",
    "Saving": "hasten.facts.saving",
    "read_plan": "hasten.facts.plan_file",
    "read_weights": "hasten.training.weights.weights_file",
    "supervised": "hasten.training.step_parts.supervised",
    "train": "hasten.entry",
    "write_plan": "hasten.checkpoint.plan_output",
}

__all__ = [
    "Augmented",
    "CenterCrop",
    "EarlyStopping",
    "EqualAverage",
    "ExponentialAverage",
    "ImageFolder",
    "Job",
    "Loss",
    "Plan",
    "RandomResizedCrop",
    "Result",
    "Run",
    "Saving",
    "Schedule",
    "Shards",
    "Step",
    "make_plan",
    "prepare",
    "read_plan",
    "read_weights",
    "resume",
    "supervised",
    "train",
    "write_plan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hasten' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
