"""Parameters of modules that only the loss holds, such as a teacher that follows the model, as a checkpoint keeps them.

No optimizer moves them, but the loss may. Most never move, and a teacher can be far larger than what learns from it:
so those are kept that are not as they were when the run began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hasten.training.moving_buffers import seen


class LossParameters:
    """modules: of the model and of the loss, by place. Made before the first step."""

    def __init__(self, modules: Mapping[str, nn.Module], model: nn.Module) -> None:
        own = {id(each) for each in model.parameters()}
        self._places = {
            f"{path}.{name}": (module, name)
            for path, module in modules.items()
            for name, each in module._parameters.items()
            if each is not None and id(each) not in own and not is_lazy(each) and not each.is_meta
        }
        self._still = {place: seen(self._at(place)) for place in self._places}

    def state_dict(self) -> dict[str, Tensor]:
        """Those that have moved, by place."""
        self._still = {place: then for place, then in self._still.items() if then == seen(self._at(place))}
        moved = {place: self._at(place) for place in self._places if place not in self._still}
        return {place: each for place, each in moved.items() if each is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError for a parameter that this job's loss does not have, or not in this shape."""
        for place, saved in state.items():
            present = self._at(place) if place in self._places else None
            if present is None or not isinstance(saved, Tensor) or present.shape != saved.shape:
                raise ValueError(f"it has a parameter {ascii(place)[:200]} of the loss, which here is another, or none")
            with torch.no_grad():
                present.copy_(saved)

    def _at(self, place: str) -> Tensor | None:
        """A module may put another tensor there at any time."""
        module, name = self._places[place]
        return module._parameters.get(name)
