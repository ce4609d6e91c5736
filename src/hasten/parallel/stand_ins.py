"""What a rank calls in place of parameters that it has not, where nothing that it computes depends on them.

A stage of a pipeline calls all that lies around the blocks, and needs little of it: the last one looks words up in an
embedding only to throw what it found away. So it has no embedding, but one row that is seen as a whole matrix. All of
it is not a number: should anything depend on it after all, the loss is none either, and moves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import nn


class StandIns:
    """Of parameters of a model, by their names in its state. Made while the rank still has them."""

    def __init__(self, model: nn.Module, names: Collection[str]) -> None:
        stand_ins = {id(each): _of(each) for name, each in model.named_parameters() if name in names}
        self._places = [
            (module._parameters, name, stand_ins[id(each)])
            for module in model.modules()
            for name, each in module._parameters.items()
            if id(each) in stand_ins
        ]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, modules have these."""
        own = [held[name] for held, name, _ in self._places]
        for held, name, stand_in in self._places:
            held[name] = stand_in
        try:
            yield
        finally:
            for (held, name, _), each in zip(self._places, own, strict=True):
                held[name] = each


def _of(parameter: nn.Parameter) -> nn.Parameter:
    row = parameter.data.new_full(parameter.shape[1:], torch.nan)  # as rows are read fast where they have memory
    seen = row.expand(parameter.shape)
    return nn.Parameter(seen, requires_grad=False)
