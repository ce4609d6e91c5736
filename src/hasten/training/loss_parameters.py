"""Parameters of modules that only the loss holds, such as a teacher that follows the model, as a checkpoint keeps them.

No optimizer of the job moves them, but the loss may. Most never move, and a teacher can be far larger than what learns
from it: so those are kept that are not as they were when the run began. To see that, each save reads them all.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from hasten.training.buffer_copies import Place
from hasten.training.forms import dense_bytes, put_into
from hasten.training.kept_buffers import ABSENT, check_new, shown
from hasten.training.moving_buffers import Seen, has_moved, seen

_FIELDS = {"value", "first", "itself", "requires_grad"}


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
    def modules(self) -> list[nn.Module]:
        """Those that only the loss holds."""
        return [*self._modules.values()]

    @property
    def moving(self) -> list[nn.Module]:
        """Those that may hold what moves; not torch's losses, which hold weights of classes."""
        return [each for each in self.modules if not type(each).__module__.startswith("torch.nn.modules.loss")]

    def named(self) -> list[tuple[str, Tensor]]:
        """Those that are there, by place."""
        return [(name, place.tensor) for name, place in self._present().items() if place.tensor is not None]

    @property
    def holders(self) -> list[dict[str, Any]]:
        """Where they keep their parameters, by name."""
        return [module._parameters for module in self.modules]

    @property
    def nbytes(self) -> int:
        return sum(dense_bytes(place.tensor) for place in self._present().values())

    def fit_containers(self) -> None:
        """A list of parameters counts them itself, and a dictionary of them has its own keys."""
        for path, module in self._modules.items():
            if isinstance(module, nn.ParameterList):
                module._size = _length(module)
            if isinstance(module, nn.ParameterDict):
                new = (name for name in module._parameters if f"{path}.{name}" not in self._first)
                keys = dict.fromkeys((*module._keys, *new))
                module._keys = {key: None for key in keys if key in module._parameters or key in vars(module)}

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
            if id(present) in own or (first is not None and not has_moved(first.seen, present)):
                continue
            state[name] = {
                "value": present,
                "first": ABSENT if first is None else first.shape,
                "itself": first is not None and first.is_it(present),
                "requires_grad": present is not None and present.requires_grad,
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """device: of a parameter that this job's loss begins without.

        Raises ValueError for a parameter that this job's loss cannot have, or that began in another shape, and for one
        that has moved since and had not when the state was taken: what it was is not known any more.
        """
        entries = {name: self._checked(name, entry) for name, entry in state.items()}
        self._check_unmoved(self._first.keys() - state.keys())
        restored: dict[int, nn.Parameter] = {}  # by what was saved: one that lies in several places stays one
        for name, entry in sorted(entries.items(), key=lambda each: not each[1]["itself"]):
            module, key = self._at(name)
            saved, present = entry["value"], module._parameters.get(key)
            if saved is not None and id(saved) not in restored:
                restored[id(saved)] = _with_content(present, entry, device)
            module._parameters[key] = None if saved is None else restored[id(saved)]
        self.fit_containers()

    def _present(self) -> dict[str, Place]:
        return {
            f"{path}.{name}": Place(holder, name)
            for path, holder in zip(self._modules, self.holders, strict=True)
            for name in holder
        }

    def _check_unmoved(self, places: Collection[str]) -> None:
        own, present = self.of_model(), self._present()
        for name in places:
            tensor = present[name].tensor if name in present else None
            if id(tensor) not in own and has_moved(self._first[name].seen, tensor):
                raise ValueError(f"the parameter {shown(name)} of the loss has moved since; load it into a new run")

    def _checked(self, place: str, entry: Any) -> Mapping[str, Any]:
        """It comes from a file."""
        first = self._first.get(place)
        known = isinstance(entry, Mapping) and entry.keys() == _FIELDS
        if not known or entry["first"] != (ABSENT if first is None else first.shape):
            raise ValueError(f"it has a parameter {shown(place)} of the loss, which is another here, or none")
        if not (entry["value"] is None or isinstance(entry["value"], Tensor)):
            raise ValueError(f"its parameter {shown(place)} of the loss is no tensor")
        if first is None:
            check_new(*self._at(place))
        return entry

    def _at(self, place: str) -> tuple[nn.Module, str]:
        path, _, name = place.rpartition(".")
        if path not in self._modules:
            raise ValueError(f"it has a parameter {shown(place)} of the loss, and there is no such module here")
        return self._modules[path], name


def _length(held: nn.ParameterList) -> int:
    """Items that are no parameters, such as None, lie among its attributes."""
    return next(number for number in count() if str(number) not in held._parameters and str(number) not in vars(held))


def _first(tensor: Tensor | None) -> _First:
    if tensor is None:
        return _First(None, seen(None), None)
    return _First(weakref.ref(tensor), seen(tensor), [*tensor.shape])


def _with_content(present: nn.Parameter | None, entry: Mapping[str, Any], device: torch.device) -> nn.Parameter:
    """A parameter with what was saved: the present one, which others may hold too, where it was that one then."""
    saved, trains = entry["value"], entry["requires_grad"] is True
    if present is None or present.is_meta or not entry["itself"]:
        where = device if present is None or present.is_meta else present.device
        return nn.Parameter(saved.to(where, copy=True), trains)
    if present.requires_grad and not trains:  # whole numbers could not be put into one that has a gradient
        present.requires_grad_(False)
    put_into(present, saved)
    if trains and not present.requires_grad:
        present.requires_grad_()
    return present
