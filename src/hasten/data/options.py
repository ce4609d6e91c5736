"""How samples are loaded: everything about it that a plan may change, and nothing of it changes what is learned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class LoaderOptions:
    workers: int = 0
    prefetch_factor: int | None = None  # batches a worker keeps ready; None is torch's default, right without workers
    persistent_workers: bool = False
    pin_memory: bool = False
