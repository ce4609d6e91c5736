"""A model whose weights are moved a little for a while, so that no part of it is at rest.

Layers often begin with zeros, or with a scale that is next to nothing: what such a layer computes then shows in no
loss, and in no gradient behind it. Whoever compares two ways to compute one model, compares them away from there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

_OF_ITS_OWN, _LEAST = 0.1, 0.01  # standard deviations of what is added: of a weight's own spread, and at least


class Nudged:
    """Moves the weights, in place and alike on every rank; back() brings them back, to the bit."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        floats = {name: each for name, each in model.named_parameters() if each.is_floating_point()}
        self._kept = {name: each.detach().to("cpu", copy=True) for name, each in floats.items()}
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, each in floats.items():
                kept = self._kept[name].double()
                spread = kept.std() if kept.numel() > 1 else kept.new_zeros(())
                size = (_OF_ITS_OWN * spread.nan_to_num(0.0)).clamp(min=_LEAST)
                noise = torch.randn(kept.shape, dtype=torch.float64, generator=generator)
                each.copy_((kept + size * noise).to(each.dtype))

    def back(self, held: Callable[[str, Tensor], Tensor]) -> None:
        """held: (name, the whole weight) -> what this rank holds of it."""
        with torch.no_grad():
            for name, each in self._model.named_parameters():
                if name in self._kept:
                    each.copy_(held(name, self._kept[name]))
