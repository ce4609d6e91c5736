"""What is kept of a loss whose value is asked for later.

On a CPU it is the value, because a tensor that lives until the end of a window keeps freed memory from being returned
to the system: later steps would have fewer page faults than those of the unmodified script. An accelerator is not
waited for: there the tensor is kept. torch is not loaded here, so that a script can load it itself.
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
