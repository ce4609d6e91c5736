"""How replicas talk to each other about their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
