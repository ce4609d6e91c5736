"""What one forward pass of a model saves for its backward pass, by repeated block, and whether tensor ranks divide it.

Bytes are those of storages, so that a view costs nothing; parameters and buffers are not counted. What is saved between
the two layers of a divided pair is divided over tensor ranks, except the input of the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from hasten.measure.torch_operations import tensors_in, tree_leaves
from hasten.techniques.common.mesh_parts import ModelParts

AROUND = ""  # the name of what is in no repeated block


@dataclass(kw_only=True, slots=True)
class SavedBytes:
    """By the name of a block. summed: of activations that tensor ranks sum, forward and backward. border: of the first
    block's output."""

    whole: Counter[str] = field(default_factory=Counter[str])
    divided: Counter[str] = field(default_factory=Counter[str])
    summed: Counter[str] = field(default_factory=Counter[str])
    border: int = 0


def saved_by(forward: Callable[[], object], model: nn.Module, parts: ModelParts) -> SavedBytes:
    """Of one call of `forward`, in which the model runs once. All hooks are removed."""
    watch = _Watch(model, parts)
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            for register in watch.hooks(name, module):
                hooks.callback(register.remove)
        with saved_tensors_hooks(watch.save, lambda tensor: tensor):
            returned = forward()
    del returned
    return watch.saved


class _Watch:
    def __init__(self, model: nn.Module, parts: ModelParts) -> None:
        self.saved = SavedBytes()
        self._parts = parts
        self._blocks = list[str]()  # that run now, the innermost last
        self._between = 0  # pairs of divided layers of which the first has begun and the second has not ended
        # Kept alive, so that no address is used twice.
        self._seen = dict(_storages([*model.parameters(), *model.buffers()]))
        self._entered = dict[int, torch.UntypedStorage]()

    def hooks(self, name: str, module: nn.Module) -> Iterator[Any]:
        """In this order, as a block may be the first or the last of its layers."""
        if name in self._parts.blocks:
            yield module.register_forward_pre_hook(lambda *_: self._blocks.append(name))
        if name in self._parts.opens:
            yield module.register_forward_pre_hook(self._open, with_kwargs=True)
        if name in self._parts.closes:
            yield module.register_forward_hook(self._close)
        if name in self._parts.blocks:
            yield module.register_forward_hook(partial(self._leave, name))

    def save(self, tensor: Tensor) -> Tensor:
        for key, storage in _storages([tensor]):
            if key not in self._seen:
                self._seen[key] = storage
                in_shares = self._between > 0 and key not in self._entered
                (self.saved.divided if in_shares else self.saved.whole)[self._block] += storage.nbytes()
        return tensor

    @property
    def _block(self) -> str:
        return self._blocks[-1] if self._blocks else AROUND

    def _open(self, module: nn.Module, given: Any, named: Any) -> None:
        entering = dict(_storages(tree_leaves((given, named))))
        self._entered |= entering
        self._between += 1
        differentiated = {id(each): each for each in tree_leaves((given, named)) if _has_gradient(each)}
        self.saved.summed[self._block] += sum(each.nbytes for each in differentiated.values())

    def _close(self, module: nn.Module, given: Any, output: Any) -> None:
        self._between = max(self._between - 1, 0)
        self.saved.summed[self._block] += sum(each.nbytes for each in tensors_in(output))

    def _leave(self, name: str, module: nn.Module, given: Any, output: Any) -> None:
        self._blocks.pop()
        if name == self._parts.blocks[0]:
            self.saved.border += sum(each.nbytes for each in tensors_in(output))


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _storages(values: Any) -> Iterator[tuple[int, torch.UntypedStorage]]:
    """By an address that is theirs while they live, also where they have only a size and no memory."""
    for value in values:
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            yield StorageWeakRef(storage).cdata, storage
