"""What a plan says of how several ranks train one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from hasten.parallel.ways import Way

Compression = Literal["bf16", "powersgd"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaOptions:
    """compression: of gradients on their way; None sends them as they are. bucket_mb: MiB of gradients that travel
    together; None is torch's own. static_graph: each step uses the same parameters in the same order.

    rank, start: of the approximation that "powersgd" sends, and the step from which on it does.
    """

    compression: Compression | None = None
    bucket_mb: float | None = None
    static_graph: bool = False
    rank: int = 1
    start: int = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardOptions:
    """keeps_gathered: a block's parameters between its forward and its backward pass. parameters, gradients: how those
    of blocks, and all of these, travel; None as they are. made_once: by the first rank alone."""

    keeps_gathered: bool
    parameters: torch.dtype | None = None
    gradients: torch.dtype | None = None
    made_once: bool = False


Schedule = Literal["1f1b", "gpipe", "interleaved"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineOptions:
    """stages: ranks that hold one model, each a stage of it, or two that lie apart where the schedule is "interleaved".

    microbatches: at least so many of equal size in an optimizer step. blocks: names of the layers between which the
    model may be cut, in any order. before: those of them that begin a stage, but for the first stage; empty where their
    measured seconds decide.
    """

    stages: int
    schedule: Schedule
    microbatches: int
    blocks: tuple[str, ...]
    before: tuple[str, ...] = ()

    @property
    def chunks(self) -> int:
        """Parts that the model is cut into."""
        return self.stages * (2 if self.schedule == "interleaved" else 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorOptions:
    """ways: of layers that ranks hold together, by name. sequence: names of blocks in the order of their calls, between
    whose layers each rank has a part of a sequence; empty where each has it whole."""

    ways: Mapping[str, Way]
    sequence: tuple[str, ...] = ()
