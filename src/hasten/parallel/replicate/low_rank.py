"""Gradients of matrices travel between replicas as the two factors of an approximation of low rank.

What the approximation leaves out is added to the next step's gradients, so each rank remembers as much as it has
gradients. A run that goes on to the bit needs that, and the factors that the next approximation begins with.

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

_REMEMBERED = "error_dict", "p_memory_dict", "q_memory_dict"  # bucket -> tensor, in torch's state


class LowRank:
    """rank: of the approximation. start: the first step that sends one, from 2 on; torch makes its buckets before."""

    def __init__(
        self, parallel: DistributedDataParallel, group: Any, *, rank: int, start: int, bucket_mb: float | None
    ) -> None:
        self._layout = {"rank": rank, "bucket_mb": bucket_mb}  # what the shapes of all that is remembered follow from
        on_host = parallel.device_type == "cpu"
        if on_host:
            group = dist.new_group(None if group is None else dist.get_process_group_ranks(group), backend="gloo")
        self._state = PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=start)
        parallel.register_comm_hook(self._state, _in_turn if on_host else powerSGD_hook)

    def state_dict(self) -> dict[str, Any]:
        """Of this rank; refers to the tensors that the next step changes."""
        remembered = {
            name: {str(bucket): tensor for bucket, tensor in getattr(self._state, name).items()} for name in _REMEMBERED
        }
        return {"steps": self._state.iter, "layout": dict(self._layout), **remembered}

    def go_on(self, state: Mapping[str, Any] | None, device: torch.device) -> list[str]:
        """From what this rank had remembered; None where that fits no more. What a person is to know of it."""
        if state is None or state["layout"] != self._layout:
            return ["what the approximation of gradients left out is lost, as processes or buckets are others now"]
        self._state.iter = state["steps"]
        for name in _REMEMBERED:
            found: dict[int, Tensor] = {
                int(bucket): tensor.to(device, copy=True) for bucket, tensor in state[name].items()
            }
            setattr(self._state, name, found)
        return []


def _in_turn(state, bucket):  # without types: torch refuses them as text, which they are here
    """gloo takes what is sent in the order of the calls, and torch makes some of these in threads of its own: so one
    bucket after the other, in a group where nobody else talks."""
    sent = powerSGD_hook(state, bucket)
    sent.wait()
    return sent
