"""Parameters of modules that only the loss holds, such as a teacher that follows the model, as a checkpoint keeps them.

No optimizer of the job moves them, but the loss may. Most never move, and a teacher can be far larger than what learns
from it: so those are kept that are not as they were when the run began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hasten.training.moving_buffers import seen
from hasten.training.same_form import have_same_form


class LossParameters:
    """modules: of the model and of the loss, by place. Made before the first step."""

    def __init__(self, modules: Mapping[str, nn.Module], model: nn.Module) -> None:
        own = {id(module) for module in model.modules()}
        self._model = model
        self._places = {
            f"{path}.{name}": (module, name)
            for path, module in modules.items()
            if id(module) not in own
            for name, each in module._parameters.items()
            if each is not None and not is_lazy(each)
        }
        present = {place: self._at(place) for place in self._places}
        self._at_first = {place: seen(each) for place, each in present.items()}
        self._shapes = {place: [*each.shape] for place, each in present.items() if each is not None}

    def state_dict(self) -> dict[str, Any]:
        """Those that have moved, by place, with their first shapes; those that the model has too are kept with it."""
        own = self._of_model()
        present = {place: self._at(place) for place in self._places}
        moved = {place for place, each in present.items() if id(each) not in own and self._has_moved(place, each)}
        return {place: {"value": present[place], "first": self._shapes[place]} for place in present if place in moved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A parameter stays the same object, unless it has another form by now, or was one with another.

        Raises ValueError for a parameter that this job's loss does not have, or not in the shape that it began with.
        """
        spoken_for = self._of_model() | {id(self._at(place)) for place in self._places if place not in state}
        restored: dict[int, nn.Parameter] = {}  # by the saved tensor: one that lies in several places stays one
        for place, entry in state.items():
            saved = entry["value"]
            if self._shapes.get(place) != entry["first"] or not (saved is None or isinstance(saved, Tensor)):
                raise ValueError(f"it has a parameter {ascii(place)[:200]} of the loss, which is another here, or none")
            module, name = self._places[place]
            present = module._parameters.get(name)
            if saved is not None and id(saved) not in restored:
                restored[id(saved)] = _with_content(None if id(present) in spoken_for else present, saved, like=present)
                spoken_for.add(id(restored[id(saved)]))
            module._parameters[name] = None if saved is None else restored[id(saved)]

    def _has_moved(self, place: str, present: Tensor | None) -> bool:
        first = self._at_first[place]
        return first.is_written(present) or first != seen(present)

    def _of_model(self) -> set[int]:
        return set(map(id, self._model.parameters()))

    def _at(self, place: str) -> Tensor | None:
        """A module may put another tensor there at any time."""
        module, name = self._places[place]
        return module._parameters.get(name)


def _with_content(free: nn.Parameter | None, saved: Tensor, *, like: nn.Parameter | None) -> nn.Parameter:
    """The parameter that is free to take the saved tensor in, where it has its form; else a new one."""
    if free is not None and have_same_form(free, saved):
        with torch.inference_mode(free.is_inference()), torch.no_grad():
            free.copy_(saved)
        return free
    if like is None:
        return nn.Parameter(saved.clone(), requires_grad=False)
    return nn.Parameter(saved.to(like.device, copy=True), like.requires_grad)
