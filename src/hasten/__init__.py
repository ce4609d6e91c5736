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
    from hasten.entry import evaluate, prepare, resume, train, tune
    from hasten.facts.job import Best, EarlyStopping, EqualAverage, ExponentialAverage, Job, Loss, Schedule
    from hasten.facts.plan import Plan, make_plan
    from hasten.facts.plan_file import read_plan
    from hasten.facts.saving import Saving
    from hasten.training.loop import Result
    from hasten.training.run import Run
    from hasten.training.step import Step
    from hasten.training.step_parts.supervised import supervised
    from hasten.training.weights.weights_file import read_weights

_NAMES = {
    "hasten.checkpoint.plan_output": ("write_plan",),
    "hasten.data.images.crops": ("CenterCrop", "RandomResizedCrop"),
    "hasten.data.images.image_folder": ("ImageFolder",),
    "hasten.data.shards.shard_dataset": ("Shards",),
    "hasten.data.sources.augmented": ("Augmented",),
    "hasten.entry": ("evaluate", "prepare", "resume", "train", "tune"),
    "hasten.facts.job": ("Best", "EarlyStopping", "EqualAverage", "ExponentialAverage", "Job", "Loss", "Schedule"),
    "hasten.facts.plan": ("Plan", "make_plan"),
    "hasten.facts.plan_file": ("read_plan",),
    "hasten.facts.saving": ("Saving",),
    "hasten.training.loop": ("Result",),
    "hasten.training.run": ("Run",),
    "hasten.training.step": ("Step",),
    "hasten.training.step_parts.supervised": ("supervised",),
    "hasten.training.weights.weights_file": ("read_weights",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "Augmented",
    "Best",
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
    "evaluate",
    "make_plan",
    "prepare",
    "read_plan",
    "read_weights",
    "resume",
    "supervised",
    "train",
    "tune",
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
