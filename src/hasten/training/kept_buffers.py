"""The buffers of a run, those of its model and of modules that its loss holds, as a checkpoint keeps them.

A state_dict() leaves out what is persistent=False, and takes back only what a new model has too. But a buffer may be
registered in the first forward pass, be None until then, or grow. So each is named by its place, that is by its
module's and its own name, and one of another form than the run began with is put back with all that makes it again. Of
each of those a new model must have what the run began with: a buffer that differs otherwise is of another job.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hasten.training.forms import form_of, is_expanded, put_into

Form = tuple[torch.Size, torch.dtype] | None
"""Of a buffer; None of one that is None."""

_MOST = 10_000  # buffers of another form: a state that has more was made to exhaust the memory
ABSENT = "absent"


class Buffers:
    """modules: by place. Made before the first step, when every buffer is as the job makes it."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = dict(modules)
        self._first: dict[str, Form] = {place: _form(each) for place, _, _, each in self._all()}
        self._kept_first = {place for place, module, name, _ in self._all() if _is_kept(module, name)}
        self._first_together = self._together()

    @property
    def modules(self) -> list[nn.Module]:
        return [*self._modules.values()]

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """What the model's state_dict() leaves out; and what has another form than at first, or another persistence."""
        held = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
        together = self._together()
        strays, changed = dict[str, Tensor](), dict[str, Any]()
        for place, module, name, each in self._all():
            kept = _is_kept(module, name)
            as_at_first = place in self._first and self._first[place] == _form(each)
            as_at_first = as_at_first and kept == (place in self._kept_first)
            if not as_at_first or together.get(place) != self._first_together.get(place):
                changed[place] = {"value": each, "persistent": kept, "first": self._shape_at_first(place)}
            elif each is not None and id(each) not in held:
                strays[place] = each
        return {"same": strays, "changed": changed}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """device: where a buffer is made whose module has no other tensor.

        Raises ValueError for a buffer that this job does not have, or not in this form.
        """
        changed: Mapping[str, Any] = state["changed"]
        if len(changed) > _MOST:
            raise ValueError(f"{len(changed):,} buffers have another form than the run began with")
        for _, module, name, each in self._all():
            if each is not None and is_expanded(each):  # nothing can be written into it
                module._buffers[name] = each.contiguous()
        for place, saved in state["same"].items():
            module, name = self._at(place)
            present = module._buffers.get(name)
            if present is None or present.shape != saved.shape:
                raise ValueError(f"its buffer {shown(place)} has the shape {tuple(saved.shape)}, and here another")
            put_into(present, saved.to(present.dtype))
        together = _together({place: entry["value"] for place, entry in changed.items()})
        made = dict[tuple[int, torch.device], Tensor]()  # what was one tensor becomes one
        for place, entry in changed.items():
            module, name = self._at(place)
            if self._shape_at_first(place) != entry["first"]:
                raise ValueError(f"its buffer {shown(place)} began in another form than here")
            if place not in self._first:
                check_new(module, name)
            is_free = together.get(place) == self._first_together.get(place)
            present = module._buffers.get(name) if is_free else None
            module._buffers[name] = _taken(present, entry["value"], made, _device_of(module, device))
            (set.discard if entry["persistent"] is True else set.add)(module._non_persistent_buffers_set, name)

    def _all(self) -> Iterator[tuple[str, nn.Module, str, Tensor | None]]:
        for path, module in self._modules.items():
            for name, each in module._buffers.items():
                yield f"{path}.{name}", module, name, each

    def _together(self) -> dict[str, set[str]]:
        return _together({place: each for place, _, _, each in self._all()})

    def _at(self, place: str) -> tuple[nn.Module, str]:
        path, _, name = place.rpartition(".")
        module = self._modules.get(path)
        if module is None:
            raise ValueError(f"it has a buffer {shown(place)}, and there is no such module here")
        return module, name

    def _shape_at_first(self, place: str) -> Any:
        form = self._first.get(place, ABSENT)
        return list(form[0]) if isinstance(form, tuple) else form


def make_buffers(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Let a new model have room for the weights of one that was trained: for buffers that were registered, filled or
    grown since it was made."""
    modules = dict(model.named_modules())
    for place, each in weights.items():
        path, _, name = place.rpartition(".")
        module = modules.get(path)
        if module is None or name in module._parameters or not isinstance(each, Tensor):
            continue
        present = module._buffers.get(name)
        if present is None or _form(present) != _form(each) or is_expanded(present):
            module._buffers[name] = torch.empty_like(each)


def _together(buffers: Mapping[str, Any]) -> dict[str, set[str]]:
    """By place, all places of the same tensor."""
    found = dict[int, set[str]]()
    for place, buffer in buffers.items():
        if buffer is not None:
            found.setdefault(id(buffer), set()).add(place)
    return {place: places for places in found.values() for place in places}


def _is_kept(module: nn.Module, name: str) -> bool:
    """Whether the module's state_dict() has it."""
    return name not in module._non_persistent_buffers_set


def _form(buffer: Tensor | None) -> Form:
    return None if buffer is None else form_of(buffer)


def check_new(module: nn.Module, name: str) -> None:
    """A name comes from a file, and must not stand for what the module has. Asks no property, as hasattr would.

    Raises ValueError.
    """
    taken = name in module._parameters or name in module._modules or name in dir(nn.Module)
    if not name or taken or inspect.getattr_static(module, name, None) is not None:
        raise ValueError(f"it has a tensor {name[:200]!r}, which cannot be one of a {type(module).__name__}")


def _taken(
    present: Tensor | None, saved: Any, made: dict[tuple[int, torch.device], Tensor], device: torch.device
) -> Tensor | None:
    """The present tensor with what was saved in it, where that fits into it; else a new one."""
    if saved is None:
        return None
    if not isinstance(saved, Tensor):
        raise TypeError(f"a {type(saved).__name__} is no buffer")
    if present is not None and _form(present) == _form(saved):
        put_into(present, saved)
        return present
    key = id(saved), device if present is None else present.device
    if key not in made:
        made[key] = saved.detach().to(key[1], copy=True)
    return made[key]


def _device_of(module: nn.Module, otherwise: torch.device) -> torch.device:
    return next((each.device for each in (*module.parameters(), *module.buffers())), otherwise)


def shown(place: str) -> str:
    return ascii(place)[:200]
