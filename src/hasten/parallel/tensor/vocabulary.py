"""Vocabulary-parallel embedding and cross-entropy: each rank holds the rows of some words.

An embedding looks up its own words, and results are summed over ranks. A head's scores stay sharded (DTensor), and
torch's loss_parallel cross-entropy exchanges the maximum and the sum of each row instead of a score for each word.

Source: Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053, section 3; torch.distributed.tensor.parallel.loss_parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from hasten.facts.job import Loss
from hasten.facts.ranks import Ranks
from hasten.parallel.tensor.layer_exchange import LayerExchange
from hasten.parallel.torch_private import tree_map


def embedding_of_shares(exchange: LayerExchange, ranks: Ranks) -> Callable[[Any, Tensor], Tensor]:
    """The forward method of an embedding of which each rank holds equally many rows."""

    def forward(module: nn.Embedding, words: Tensor) -> Tensor:
        held = module.weight.shape[0]
        local = words - ranks.rank * held
        known = (words >= 0) & (words < ranks.size * held)  # torch refuses others, on every rank
        elsewhere = known & ((local < 0) | (local >= held))
        padding = None if module.padding_idx is None else module.padding_idx - ranks.rank * held
        found = functional.embedding(
            torch.where(known, local.masked_fill(elsewhere, 0), ranks.size * held),
            module.weight,
            padding if padding is not None and 0 <= padding < held else None,
        )
        return exchange.end(found.masked_fill(elsewhere.unsqueeze(-1), 0.0))

    return forward


def scores_in_shares(mesh: DeviceMesh) -> Callable[[nn.Module, Any, Tensor], DTensor]:
    """A forward hook for a linear layer of which each rank holds some outputs: its result as a DTensor."""
    return lambda module, given, scores: DTensor.from_local(scores, mesh, [Shard(-1)], run_check=False)


@contextmanager
def loss_of_shares_enabled() -> Iterator[None]:
    """Inside, losses of sharded scores can be computed and differentiated; other tensors count as replicated. torch has
    one switch for a process, so one such run can be open at a time."""
    with loss_parallel(), implicit_replication():
        yield


class LossOfShares:
    """A loss function whose model gives sharded scores. What it returns is gathered, except the prediction while
    gradients are enabled, when it is not used."""

    def __init__(self, loss: Callable[[nn.Module, Any], Any]) -> None:
        self._loss = loss

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        returned = self._loss(model, batch)
        if not isinstance(returned, Loss):
            return _whole(returned)
        read = {each.name for each in fields(Loss)} - ({"prediction"} if torch.is_grad_enabled() else set())
        return replace(returned, **{name: tree_map(_whole, getattr(returned, name)) for name in read})


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value
