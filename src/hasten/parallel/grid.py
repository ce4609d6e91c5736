"""How the ranks of a run divide its work: which of them train on different samples, and which hold one model together.

Those that hold one model together have neighbouring numbers: they talk in every layer, so they belong on one machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hasten.errors import Misconfigured
from hasten.facts.ranks import ALONE, Ranks
from hasten.parallel.replicate import present_ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DATA, MODEL = "data", "model"  # the dimensions of a grid's mesh


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """all: every rank of the run. data: those that hold what this one holds, each with a share of the samples. model:
    those that hold one model together.

    mesh: torch's, of DATA by MODEL; None where each rank holds a model by itself, so that `data` is `all`.
    """

    all: Ranks = ALONE
    data: Ranks = ALONE
    model: Ranks = ALONE
    mesh: DeviceMesh | None = None


def grid_of(together: int, device: torch.device) -> Grid:
    """together: ranks that hold one model. Raises Misconfigured where they do not divide all that there are."""
    every = present_ranks()
    if together == 1:
        return Grid(all=every, data=every)
    if every.size % together:
        raise Misconfigured(
            f"{every.size} processes cannot be divided into groups of {together} that hold one model: "
            f"{every.size} = {every.size // together} × {together} + {every.size % together}",
            where="tensor",
            fix=f"start {every.size // together * together or together} processes, or write another size into the plan",
        )
    from torch.distributed.device_mesh import init_device_mesh  # it takes a while to load

    mesh = init_device_mesh(device.type, (every.size // together, together), mesh_dim_names=(DATA, MODEL))
    data = Ranks(mesh.get_local_rank(DATA), every.size // together, mesh.get_group(DATA))
    model = Ranks(mesh.get_local_rank(MODEL), together, mesh.get_group(MODEL))
    return Grid(all=every, data=data, model=model, mesh=mesh)
