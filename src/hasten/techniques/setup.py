"""Everything that a plan may change, in one place.

A technique's `apply` writes here and nowhere else; `training` reads it and acts. `None` always means unchanged: the
setting of the user's process, of torch or of the job stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.job_data import Source
from hasten.facts.job import Job
from hasten.facts.machine import Machine
from hasten.facts.ranks import ALONE, Ranks
from hasten.kernels.graph_rewrite import FusedOperators
from hasten.parallel.options import PipelineOptions, ReplicaOptions, ShardOptions, TensorOptions

StateMap = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]


@dataclass(kw_only=True, slots=True)
class ProcessOptions:
    threads: int | None = None  # compute threads inside one operation
    flush_denormals: bool | None = None
    float32_matmul: Literal["highest", "high", "medium"] | None = None  # torch.set_float32_matmul_precision
    cudnn_tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    environment: dict[str, str] = field(default_factory=dict[str, str])  # must be set before the device is first used
    keep_freed_memory: bool | None = None  # C allocator: keep large freed blocks in the process


@dataclass(kw_only=True, slots=True)
class OptimizerOptions:
    implementation: Literal["for_loop", "foreach", "fused"] | None = None
    learning_rate: float | None = None  # replaces every group's rate, keeping the ratios between groups
    removed: dict[str, nn.Parameter] = field(default_factory=dict[str, nn.Parameter])
    """Parameters of the job's own model that were removed from this one, by name."""


@dataclass(kw_only=True, slots=True)
class ScheduleOptions:
    """A torch scheduler by its class name in torch.optim.lr_scheduler; replaces the job's own schedule."""

    name: str
    arguments: dict[str, Any]
    unit: Literal["step", "epoch", "evaluation"]
    metric: str = "loss"  # the evaluation result that ReduceLROnPlateau watches


@dataclass(kw_only=True, slots=True)
class StepOptions:
    autocast: torch.dtype | None = None  # None: no autocast
    scale_gradients: bool = False  # fp16's loss scaling
    microbatch_size: int | None = None  # samples in one forward and backward; None: the whole batch at once
    memory_format: torch.memory_format | None = None  # of four-dimensional inputs
    clip_norm: float | None = None
    clip_norm_type: float = 2.0
    clip_value: float | None = None
    read_every: int = 50  # steps between two reads of device metrics by the host


@dataclass(kw_only=True, slots=True)
class CompileOptions:
    mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    dynamic: bool | None = None
    backend: FusedOperators | None = None  # None: torch's own compiler


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """An evaluation result at least as good as this ends the training."""

    metric: str
    value: float
    higher_is_better: bool


@dataclass(kw_only=True, slots=True)
class EvaluationOptions:
    batch_size: int | None = None  # None: the training batch
    target: Target | None = None


@dataclass(kw_only=True, slots=True)
class Setup:
    """A job made concrete on one machine, before its first step."""

    job: Job
    machine: Machine
    device: torch.device
    ranks: Ranks = ALONE
    model: nn.Module = field(default_factory=nn.Module)
    """On the host; it moves to the device after every choice has been applied. Empty during the PROCESS stage."""
    train: Source | None = None  # what is trained on; None during the PROCESS stage
    draw_sample: Callable[[Any], Any] = lambda setup: None  # (this setup) -> one batch
    sampled: Any = None  # what draw_sample has returned
    batch_size: int | None = None  # of one optimizer step, over all ranks; None during the PROCESS stage
    process: ProcessOptions = field(default_factory=ProcessOptions)
    loader: LoaderOptions = field(default_factory=LoaderOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions | None = None
    step: StepOptions = field(default_factory=StepOptions)
    compile: CompileOptions | None = None
    shares: int = 1  # neighbouring ranks that divide layers between them
    tensor: TensorOptions | None = None  # the layers that they divide
    pipeline: PipelineOptions | None = None  # the stages of one model, each on as many ranks
    replica: ReplicaOptions = ReplicaOptions()  # noqa: RUF009 frozen
    shard: ShardOptions | None = None  # None: each rank, or each group of `shares` ranks, holds the whole model
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)
    to_job_weights: list[StateMap] = field(default_factory=list[StateMap])
    """Maps from this model's state_dict to that of the job's own model, applied from the last to the first. Weights are
    always saved in the job's own form."""
    notices: list[str] = field(default_factory=list[str])
    """Messages to show the user once: a setting that was skipped, an effect that a choice has on training."""

    @property
    def sample(self) -> Any:
        """One batch of the loader, on the host: for tracing and measuring, never for training and never written to.

        A process of its own reads it, so that the run's workers do not inherit what the data set opens.
        """
        if self.sampled is None:
            self.sampled = self.draw_sample(self)
        return self.sampled
