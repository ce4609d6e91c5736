"""Events of a run. Training emits them; a terminal, a file or a plotting tool receives them.

A receiver is a function of one event, or any object with two methods: log(event) and close().
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparing:
    """Progress of reading samples into a cache before the run begins."""

    done: int
    samples: int  # in all


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    job: str
    machine: str
    device: str
    parameters: int
    samples: int | None  # None for an iterable without a length
    batch_size: int
    microbatch_size: int
    total_steps: int | None  # None while an iterable's length is unknown
    total_epochs: int | None
    choices: tuple[str, ...]  # of the plan, in words


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The optimizer steps since the last such record; rates and momenta are those of the last one."""

    step: int
    epoch: int
    loss: float  # mean over the items of all these steps
    learning_rate: float  # of the first parameter group
    momentum: float | None  # momentum or beta1 of the first group; None for an optimizer without
    gradient_norm: float | None  # before clipping, of the last step; None when it is not computed
    seconds: float  # since the run began
    samples_per_second: float
    data_wait_share: float  # 0 to 1: of the time, spent waiting for the loader
    memory_bytes: int  # at most since the process began: on the accelerator, or of this process on a CPU
    skipped_updates: int  # since the run began
    parts: Mapping[str, float] = field(default_factory=dict[str, float])  # of the loss, by their names: means


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    step: int
    epoch: int
    results: Mapping[str, float]  # "loss", its parts and the job's metrics
    seconds: float  # that this evaluation took
    batch_size: int
    best: bool  # the best so far, by Job.keep, else by Job.stop


@dataclass(frozen=True, kw_only=True, slots=True)
class Noticed:
    """A notice for the user: a skipped setting, an effect on training, a difference from the plan's proof."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """The run resumes from a checkpoint. It replaces Started and the notices before the run."""

    started: Started
    step: int
    checkpoint: str | None  # its path; None where the run has none, and begins again
    notices: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint is on the disk and was verified."""

    step: int
    path: str
    bytes: int
    reason: str  # in words
    stall_seconds: float  # for which training stopped
    seconds: float  # until it was verified


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    reason: str
    steps: int
    epochs: int
    seconds: float
    results: Mapping[str, float]  # of the returned weights; empty without evaluation
    kept_step: int  # the step whose weights are returned
    skipped_updates: int
    weights: str | None  # path of the saved weights; None when the run writes no files


Event = Preparing | Started | Trained | Evaluated | Noticed | Resumed | Saved | Finished


class Receiver(Protocol):
    def log(self, event: Event) -> None: ...

    def close(self) -> None: ...


AnyReceiver = Receiver | Callable[[Event], object]
