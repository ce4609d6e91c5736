"""Float32 copies of weights that a model keeps in a 16-bit type.

A bf16 number has eight bits of precision: an update smaller than about 1/256 of the weight is rounded away, so a model
trained at a small rate stands still, and a sum of many microbatch gradients drifts. Here the optimizer moves a float32
copy, gradients of all microbatches are summed in float32, and the 16-bit weight is the rounded copy.

Source: mixed-precision training, Micikevicius et al. 2017, arXiv:1710.03740, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

_SHORT = (torch.bfloat16, torch.float16)


class MasterWeights:
    """The float32 copies of every trainable 16-bit parameter of a model. Its gradients are moved as they arise."""

    def __init__(self, model: nn.Module) -> None:
        short = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.dtype in _SHORT]
        self._pairs = [(parameter, Parameter(parameter.detach().float())) for parameter in short]
        self._master = {id(parameter): master for parameter, master in self._pairs}
        for parameter, master in self._pairs:
            parameter.register_post_accumulate_grad_hook(_mover_to(master))

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def replace(self, parameters: Iterable[Parameter]) -> list[Parameter]:
        """The same parameters, each 16-bit one replaced by its float32 copy."""
        return [self._master.get(id(parameter), parameter) for parameter in parameters]

    def hand_to(self, optimizer: Optimizer) -> None:
        """Let a newly made optimizer move the copies instead."""
        for group in optimizer.param_groups:
            group["params"] = self.replace(group["params"])

    def write_back(self) -> None:
        """Round the copies into the model, after an update."""
        if not self._pairs:
            return
        with torch.no_grad():
            for parameter, master in self._pairs:
                parameter.copy_(master)

    def tensors(self) -> list[Tensor]:
        """The copies themselves, in the model's order, for saving and loading."""
        return [master for _, master in self._pairs]


def _mover_to(master: Parameter):
    def move(parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None

    return move
