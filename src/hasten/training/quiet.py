"""Looking at a model without leaving a trace: its modes are put back, and what inference left in it is made usable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import is_not
from typing import Any

from torch import Tensor, nn

# One function for every room; `tune`, which may not import `data`, reaches it through this one.
from hasten.data.randomness import undisturbed as undisturbed
from hasten.training.forms import can_lie_elsewhere


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode inside the block; each one's own mode, frozen parts included, after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def release_inference_tensors(modules: Iterable[nn.Module], before: Mapping[Tensor, bool] | None = None) -> None:
    """Replace tensors that a module created and kept during inference_mode, such as a cached table of positions.

    Autograd refuses to save them for a backward pass, so the next training step would fail on what an evaluation left.
    before: whether each tensor that was there before it was made for inference. What was stays so; what was not, and
    got its content there by `.data = …`, as a cast does, stays the same object.
    """
    usable = _Usable(before or {})
    for module in modules:
        for holder in (module._buffers, module._parameters):
            for name, tensor in holder.items():
                if tensor is not None:
                    holder[name] = usable.tensor(tensor)
        for name, value in vars(module).items():
            if name not in _OF_THE_MODULE:
                vars(module)[name] = usable.value(value)


_OF_THE_MODULE = frozenset({"_parameters", "_buffers", "_modules"})


class _Usable:
    """Of what an inference left, what autograd can use."""

    def __init__(self, before: Mapping[Tensor, bool]) -> None:
        self._before = before
        self._seen: dict[int, Any] = {}  # kept alive, that no number is used twice
        self._made: dict[Tensor, Tensor] = {}  # one tensor that lies in several places stays one

    def tensor(self, tensor: Any) -> Any:
        was_for_inference = self._before.get(tensor)
        if not tensor.is_inference() or was_for_inference:
            return tensor
        if was_for_inference is not None and can_lie_elsewhere(tensor):
            tensor.data = tensor.detach().clone()
            return tensor
        if tensor not in self._made:
            copy = tensor.detach().clone()
            self._made[tensor] = nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
        return self._made[tensor]

    def value(self, value: Any) -> Any:
        """The value, with every inference tensor in it replaced; lists and dictionaries stay the same objects, and what
        has nothing to replace is not written: it may not allow that."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        if id(value) in self._seen:
            return value
        if isinstance(value, dict | list):
            self._seen[id(value)] = value
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, new in [(key, new) for key, item in items if (new := self.value(item)) is not item]:
                value[key] = new
        elif type(value) is tuple:
            items = tuple(map(self.value, value))
            return items if any(map(is_not, items, value)) else value
        return value
