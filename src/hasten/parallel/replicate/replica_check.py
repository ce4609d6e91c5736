"""Replicas start with the same weights and make the same updates, so they hold the same weights; or they are refused.

An optimizer that draws noise, or a loss or layer that writes to parameters by its own rank's samples
(Embedding.max_norm), makes each replica train another model, and only one of them is saved. So a checksum of each
parameter is compared before an evaluation and a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hasten.errors import JobError
from hasten.parallel.collectives import copy_from_first, gather_over_ranks
from hasten.parallel.grid import Grid

_TOLERANCE = 1e-4  # relative; updates that processors round differently drift by far less
_SHOWN = 3


def check_same_weights(parameters: Iterable[tuple[str, Tensor]], grid: Grid, device: torch.device) -> None:
    """Raises JobError, on all ranks, where the data ranks hold other values. parameters: by name. device: the one that
    this rank trains on."""
    names = _different(parameters, grid, device)
    if names:
        raise JobError(
            "",
            f"its loss or its optimizer changed {names} differently on each process, so the replicas' weights differ",
            "in the loss, write to parameters only values that are equal on all processes, or use buffers; give an "
            "optimizer's noise a generator with one seed; build Embedding without max_norm",
        )


def check_same_declared(parameters: Iterable[tuple[str, Tensor]], grid: Grid, device: torch.device) -> None:
    """Like check_same_weights, for declared modules before the first step."""
    names = _different(parameters, grid, device)
    if names:
        what = f"declares {names}, which each process initialised differently"
        raise JobError("state", what, "call torch.manual_seed(…) before the module is made")


def _different(parameters: Iterable[tuple[str, Tensor]], grid: Grid, device: torch.device) -> str:
    if not grid.data.many:
        return ""
    dense = [(name, each) for name, each in parameters if not each.is_meta and each.layout == torch.strided]
    own = torch.stack([_checksum(each).to(device) for _, each in dense]) if dense else torch.zeros(0, 2, device=device)
    first = own.clone()
    copy_from_first([first], grid.data)
    same = ((own - first).abs() <= _TOLERANCE * first[:, 1:]).all(1) | (own.isnan() & first.isnan()).all(1)
    here = [name for (name, _), is_same in zip(dense, same.tolist(), strict=True) if not is_same]
    return ", ".join([*dict.fromkeys(gather_over_ranks(here, grid.all, device))][:_SHOWN])


def _checksum(tensor: Tensor) -> Tensor:
    """[2], float64: a sum with fixed weights that differ from element to element, and the sum of magnitudes."""
    found = torch.zeros(2, dtype=torch.float64, device=tensor.device)
    for piece in tensor.detach().flatten().split(2**20):
        piece = piece.double()
        weights = torch.arange(piece.numel(), device=piece.device).mul(0.618034).cos()  # of either sign
        found += torch.stack((torch.dot(piece, weights.double()), piece.abs().sum()))
    return found
