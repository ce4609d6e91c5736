"""hasten makes PyTorch training fast, and proves it.

Names load on first use, so that `import hasten` and the command line's help do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hasten.checkpoint.plans import write_plan
    from hasten.entry import prepare, train
    from hasten.facts.job import EarlyStopping, EqualAverage, ExponentialAverage, Job, Schedule
    from hasten.facts.loss import Loss
    from hasten.facts.plan import Plan, make_plan
    from hasten.facts.plan_file import read_plan
    from hasten.training.loop import Result
    from hasten.training.run import Run
    from hasten.training.step import Step
    from hasten.training.supervised import supervised

_HOMES = {
    "EarlyStopping": "hasten.facts.job",
    "EqualAverage": "hasten.facts.job",
    "ExponentialAverage": "hasten.facts.job",
    "Job": "hasten.facts.job",
    "Loss": "hasten.facts.loss",
    "Plan": "hasten.facts.plan",
    "Result": "hasten.training.loop",
    "Run": "hasten.training.run",
    "Schedule": "hasten.facts.job",
    "Step": "hasten.training.step",
    "make_plan": "hasten.facts.plan",
    "prepare": "hasten.entry",
    "read_plan": "hasten.facts.plan_file",
    "supervised": "hasten.training.supervised",
    "train": "hasten.entry",
    "write_plan": "hasten.checkpoint.plans",
}

__all__ = [
    "EarlyStopping",
    "EqualAverage",
    "ExponentialAverage",
    "Job",
    "Loss",
    "Plan",
    "Result",
    "Run",
    "Schedule",
    "Step",
    "make_plan",
    "prepare",
    "read_plan",
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
