"""States that each rank has of its own: saved together by all ranks, and loaded by rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from hasten.data.order.randomness import random_state, set_random_state
from hasten.parallel.collectives import gather_over_ranks
from hasten.parallel.grid import Grid


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any) -> Any: ...


class RandomStates:
    """torch's, NumPy's and Python's global generators. torch's are seeded anew for each step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def state_dict(self) -> dict[str, Any]:
        return random_state(self._device)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        set_random_state(state, self._device)


class PerRank:
    """The state of a part on every rank, as a list. lost: what to say where ranks were others; it is added to notices,
    and the part stays as it is."""

    def __init__(
        self, part: Stateful, grid: Grid, device: torch.device, lost: str, notify: Callable[[str], None]
    ) -> None:
        self._part, self._grid, self._device = part, grid, device
        self._lost, self._notify = lost, notify

    def state_dict(self) -> dict[str, Any]:
        """All ranks call it together."""
        states = gather_over_ranks([self._part.state_dict()], self._grid.all, self._device)
        return {"together": self._grid.together, "ranks": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        before, now = (state["together"], len(state["ranks"])), (self._grid.together, self._grid.all.size)
        if before != now:
            ranks = f"saved by {before[1]} ranks and resumed with {now[1]}"
            self._notify(
                f"the run was {ranks if before[1] != now[1] else 'saved by ranks of another layout'}: {self._lost}"
            )
            return
        try:
            self._part.load_state_dict(state["ranks"][self._grid.all.rank])
        except ValueError as error:
            self._notify(f"{self._lost}: {error}")
