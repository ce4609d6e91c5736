"""PowerSGD: replicas send the two factors of a low-rank approximation of each gradient matrix.

The error of the approximation is added to the next step's gradients, so each rank stores as much as it has gradients.
A bit-exact resume needs that, and the factors that the next approximation starts from.

Source: PowerSGD, Vogels et al. 2019, arXiv:1905.13727; https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hasten.facts.ranks import Ranks
from hasten.parallel.options import ReplicaOptions

_STATES = "error_dict", "p_memory_dict", "q_memory_dict"  # bucket -> tensor, in torch's state


class LowRank:
    """Of this rank. attach() it to the replica once that is built."""

    def __init__(self, ranks: Ranks, device: torch.device, options: ReplicaOptions) -> None:
        self._layout = {"rank": options.rank, "bucket_mb": options.bucket_mb}  # which the shapes follow from
        self._device, self._on_host = device, device.type == "cpu"
        group = ranks.group
        if self._on_host:
            group = dist.new_group(None if group is None else dist.get_process_group_ranks(group), backend="gloo")
        self._state = PowerSGDState(group, matrix_approximation_rank=options.rank, start_powerSGD_iter=options.start)

    def attach(self, parallel: DistributedDataParallel) -> None:
        parallel.register_comm_hook(self._state, _one_at_a_time if self._on_host else powerSGD_hook)

    def state_dict(self) -> dict[str, Any]:
        """It refers to the tensors that the next step changes."""
        tensors = {name: {str(key): each for key, each in getattr(self._state, name).items()} for name in _STATES}
        return {"steps": self._state.iter, "layout": dict(self._layout), **tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError for a state of another layout of buckets."""
        if state["layout"] != self._layout:
            raise ValueError("its buckets are others")
        self._state.iter = state["steps"]
        for name in _STATES:
            found: dict[int, Tensor] = {int(key): each.to(self._device, copy=True) for key, each in state[name].items()}
            setattr(self._state, name, found)


def _one_at_a_time(state, bucket):  # without types: torch refuses annotations that are strings
    """gloo matches messages by the order of the calls, and torch makes some of them in threads of its own: so one
    bucket after the other, in a group that nothing else uses."""
    sent = powerSGD_hook(state, bucket)
    sent.wait()
    return sent
