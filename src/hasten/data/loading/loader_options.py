"""How samples are loaded: everything about it that a plan may change, and nothing of it changes what is learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(kw_only=True, slots=True)
class LoaderOptions:
    workers: int = 0
    worker_kind: Literal["processes", "threads"] = "processes"
    prefetch_factor: int | None = None  # batches a worker keeps ready; None is torch's default, right without workers
    persistent_workers: bool = False
    pin_memory: bool = False
    device_prefetch: int = 0  # batches that are copied to the device while an earlier one computes
    device_transform: bool = False  # pictures are cropped and resized on the device, not where they are decoded
    cache: Path | bool = False  # keep the steady part of the samples decoded on disk: in this folder, or the usual one
    in_memory: Literal["host", "device"] | None = None  # hold all samples as columns
    in_memory_share: float | None = None  # of the memory there, that they may take; None is the usual one


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where batches go, for data sets that can prepare for it.

    accelerator: to the memory of a device of its own. transforms: the device crops and resizes too. channels_last: the
    model computes in that layout.
    """

    accelerator: bool = False
    transforms: bool = False
    channels_last: bool = False


ON_HOST = Placement()
