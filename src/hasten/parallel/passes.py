"""Forward passes that are looked at more closely: the first few, which show most mistakes, and one in many others.

To look at each of them would cost more than it is worth.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

FIRST = 3
_ONE_IN = 53  # a prime, so that it falls into step with few things that a loss does now and then


class Passes:
    """Of a root, through a pair of hooks. under_way: not where a checkpoint computes layers again, behind the pass."""

    def __init__(self, root: nn.Module) -> None:
        self.under_way = self._trains = False
        self._trained = self._evaluated = 0
        root.register_forward_pre_hook(self._begin)
        root.register_forward_hook(self._end)

    def _begin(self, *_: Any) -> None:
        self.under_way, self._trains = True, torch.is_grad_enabled()
        if self._trains:
            self._trained += 1
        else:
            self._evaluated += 1

    def _end(self, *_: Any) -> None:
        self.under_way = False

    @property
    def looked_at(self) -> bool:
        """On all ranks alike: they begin equally many."""
        return self.is_one_in_many or (self._trained if self._trains else self._evaluated) <= FIRST

    @property
    def is_one_in_many(self) -> bool:
        """Of those that train."""
        return self._trains and self._trained % _ONE_IN == 0
