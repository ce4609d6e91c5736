"""The optimizer whose updates are a running script's steps. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from hasten.facts.scripts.seen import Stack
from hasten.scripts.observing.calls import users_calls


@dataclass(kw_only=True, slots=True)
class MainOptimizer:
    """number: how many optimizers the script makes before it. Once it has made an update, another one of the same place
    in the script replaces it: that of the next fold of a cross-validation. updates: of all these."""

    number: int
    optimizer: Any = None
    updates: int = 0
    _made: int = 0
    _place: Stack = ()
    _known: WeakSet[Any] = field(default_factory=WeakSet[Any])

    def is_made(self, optimizer: Any) -> bool:
        """Whether an optimizer that was made just now is the main one. Its constructor can run several times."""
        if optimizer in self._known:
            return False
        self._known.add(optimizer)
        self._made += 1
        place = users_calls()
        if self._made - 1 != self.number and (not self.updates or place != self._place):
            return False
        self.optimizer, self._place = optimizer, place
        return True
