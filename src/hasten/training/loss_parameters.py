"""Parameters of modules that only the loss holds, such as a teacher that follows the model, as a checkpoint keeps them.

No optimizer of the job moves them, but the loss may. Most never move, and a teacher can be far larger than what learns
from it: so those are kept that are not as they were when the run began. To see that, each save reads them all.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hasten.training.buffer_copies import Place
from hasten.training.kept_buffers import check_new
from hasten.training.moving_buffers import Seen, seen
from hasten.training.same_form import have_same_form, is_expanded

_ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class _First:
    """What lay in a place when the run began. itself: None of nothing."""

    itself: weakref.ref[Tensor] | None
    seen: Seen
    shape: list[int] | None

    def is_it(self, present: Tensor | None) -> bool:
        return present is not None and self.itself is not None and self.itself() is present


class LossParameters:
    """modules: of the model and of the loss, by place. Made before the first step."""

    def __init__(self, modules: Mapping[str, nn.Module], model: nn.Module) -> None:
        own = {id(module) for module in model.modules()}
        self._model = model
        self._modules = {path: module for path, module in modules.items() if id(module) not in own}
        self._first = {place: _first(each.tensor) for place, each in self._present().items()}

    @property
    def holders(self) -> list[dict[str, Any]]:
        """Where the modules keep their parameters, by name."""
        return [module._parameters for module in self._modules.values()]

    def of_model(self) -> set[int]:
        """The numbers of the model's own parameters, which a loss may hold too."""
        return set(map(id, self._model.parameters()))

    def state_dict(self) -> dict[str, Any]:
        """Those that have moved or are new, by place; those that the model has too are kept with it.

        first: the shape that one began with. itself: whether it is the parameter that it began with.
        """
        own, state = self.of_model(), dict[str, Any]()
        for name, place in self._present().items():
            first, present = self._first.get(name), place.tensor
            if id(present) in own or (first is not None and not _has_moved(first.seen, present)):
                continue
            state[name] = {
                "value": present,
                "first": _ABSENT if first is None else first.shape,
                "itself": first is not None and first.is_it(present),
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """device: of a parameter that this job's loss begins without.

        Raises ValueError for a parameter that this job's loss cannot have, or that began in another shape.
        """
        entries = {name: self._checked(name, entry) for name, entry in state.items()}
        restored: dict[int, nn.Parameter] = {}  # by what was saved: one that lies in several places stays one
        for name, entry in sorted(entries.items(), key=lambda each: not each[1]["itself"]):
            module, key = self._at(name)
            saved, present = entry["value"], module._parameters.get(key)
            if saved is not None and id(saved) not in restored:
                restored[id(saved)] = _with_content(present, saved, device, stays=entry["itself"])
            module._parameters[key] = None if saved is None else restored[id(saved)]
            if isinstance(module, nn.ParameterList):
                module._size = len(module._parameters)

    def _present(self) -> dict[str, Place]:
        return {
            f"{path}.{name}": Place(holder, name)
            for path, holder in zip(self._modules, self.holders, strict=True)
            for name in holder
        }

    def _checked(self, place: str, entry: Any) -> Mapping[str, Any]:
        """It comes from a file."""
        first = self._first.get(place)
        known = isinstance(entry, Mapping) and {"value", "first", "itself"} <= entry.keys()
        if not known or entry["first"] != (_ABSENT if first is None else first.shape):
            raise ValueError(f"it has a parameter {_shown(place)} of the loss, which is another here, or none")
        if not (entry["value"] is None or isinstance(entry["value"], Tensor)):
            raise ValueError(f"its parameter {_shown(place)} of the loss is no tensor")
        if first is None:
            check_new(*self._at(place))
        return entry

    def _at(self, place: str) -> tuple[nn.Module, str]:
        path, _, name = place.rpartition(".")
        if path not in self._modules:
            raise ValueError(f"it has a parameter {_shown(place)} of the loss, and there is no such module here")
        return self._modules[path], name


def _first(tensor: Tensor | None) -> _First:
    if tensor is None:
        return _First(None, seen(None), None)
    return _First(weakref.ref(tensor), seen(tensor), [*tensor.shape])


def _has_moved(first: Seen, present: Tensor | None) -> bool:
    if present is None:
        return first != seen(None)
    return first.is_written(present) or first != seen(present)


def _with_content(present: nn.Parameter | None, saved: Tensor, device: torch.device, *, stays: bool) -> nn.Parameter:
    """A parameter with what was saved. stays: whether it is the present one, which others may hold too."""
    if present is None or present.is_meta:
        return nn.Parameter(saved.to(device, copy=True), present is not None and present.requires_grad)
    if not stays:
        return nn.Parameter(saved.to(present.device, copy=True), present.requires_grad)
    with torch.inference_mode(present.is_inference()), torch.no_grad():
        if have_same_form(present, saved) and not is_expanded(present):
            present.copy_(saved)
        else:
            present.data = saved.to(present.device, copy=True)
    return present


def _shown(place: str) -> str:
    return ascii(place)[:200]
