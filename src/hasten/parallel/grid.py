"""How the ranks of a run divide its work: which of them train on different samples, and which hold one model together.

Those that hold one model together have neighbouring numbers: they communicate in every layer, so they belong on one
machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hasten.errors import Misconfigured
from hasten.facts.ranks import ALONE, Ranks
from hasten.parallel.collectives import present_ranks

DATA, STAGES, SHARES = "data", "stages", "shares"  # the dimensions of a grid's mesh


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """all: every rank of the run. data: those that hold what this one holds, each with a share of the samples. stages:
    those that hold one model as a pipeline. shares: those that hold its layers together (tensor parallelism).

    mesh: torch's DeviceMesh of DATA by STAGES by SHARES; None where each rank holds a model by itself, so that `data`
        is `all`.
    """

    all: Ranks = ALONE
    data: Ranks = ALONE
    stages: Ranks = ALONE
    shares: Ranks = ALONE
    mesh: Any = None

    @property
    def together(self) -> int:
        """How many ranks hold one model."""
        return self.stages.size * self.shares.size


def grid_of(stages: int, shares: int, device: torch.device) -> Grid:
    """Of all ranks. Raises Misconfigured where stages · shares does not divide their number."""
    every, together = present_ranks(), stages * shares
    if together == 1:
        return Grid(all=every, data=every)
    if every.size % together:
        how = f" (pipeline {stages} × tensor {shares})" if 1 < shares < together else ""
        raise Misconfigured(
            f"{every.size} processes cannot be divided into groups of {together} that hold one model{how}: "
            f"{every.size} = {every.size // together} × {together} + {every.size % together}",
            where="pipeline" if stages > 1 else "tensor",
            fix=f"start {every.size // together * together or together} processes, or change the size in the plan",
        )
    from torch.distributed.device_mesh import init_device_mesh  # it takes a while to load

    sizes = {DATA: every.size // together, STAGES: stages, SHARES: shares}
    mesh = init_device_mesh(device.type, (*sizes.values(),), mesh_dim_names=(*sizes,))
    along = {name: Ranks(mesh.get_local_rank(name), size, mesh.get_group(name)) for name, size in sizes.items()}
    return Grid(all=every, data=along[DATA], stages=along[STAGES], shares=along[SHARES], mesh=mesh)
