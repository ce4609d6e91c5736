"""What a plan says about several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from hasten.parallel.tensor.layer_divisions import Division


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaOptions:
    """in_bf16: gradients are rounded for the transfer. bucket_mb: MiB of gradients in one message; None is torch's
    default. static_graph: each step uses the same parameters in the same order."""

    in_bf16: bool = False
    bucket_mb: float | None = None
    static_graph: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardOptions:
    """keeps_gathered: whether a block's parameters stay gathered between its forward and its backward pass.
    parameters, gradients: dtypes in which blocks are gathered and gradients are reduced; None keeps theirs.
    made_once: the first rank alone initialises the model."""

    keeps_gathered: bool
    parameters: torch.dtype | None = None
    gradients: torch.dtype | None = None
    made_once: bool = False


Schedule = Literal["1f1b", "gpipe", "interleaved"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineOptions:
    """stages: ranks that hold one model, each one stage of it, or two where the schedule is "interleaved".

    microbatches: of equal size in an optimizer step, at least. blocks: names of the modules between which the model may
    be cut. before: those that begin a stage, without the first stage; empty for equally many blocks in each.
    """

    stages: int
    schedule: Schedule
    microbatches: int
    blocks: tuple[str, ...]
    before: tuple[str, ...] = ()

    @property
    def chunks(self) -> int:
        """Stages that the model is cut into."""
        return self.stages * (2 if self.schedule == "interleaved" else 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorOptions:
    """divisions: of layers that ranks hold together, by name. sequence: names of blocks in the order of their calls,
    between whose layers each rank has a part of the sequence; empty where each has all of it."""

    divisions: Mapping[str, Division]
    sequence: tuple[str, ...] = ()
