"""What is kept of a loss whose value is asked for later.

On a CPU it is the value. A tensor that lives until the end of a window keeps the heap above it from being returned to
the system, and later steps have fewer page faults than those of the script alone. An accelerator is not waited for:
there the tensor is kept. torch is not loaded here, so that a script can load it itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def loss_value(loss: Tensor) -> float | Tensor:
    """Of a loss with several elements, the mean."""
    loss = loss.detach()
    if loss.numel() != 1:
        loss = loss.mean()
    return loss.item() if loss.is_cpu else loss
