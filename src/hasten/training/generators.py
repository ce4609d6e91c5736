"""Random generators of the job's own: what draws beside the three global ones.

A model that draws from a torch.Generator, a numpy Generator or a random.Random which it holds is resumed exactly only
if that generator is. Which there are is found once; a step asks for nothing but their states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hasten.data.generator_states import seed, set_state, state_of
from hasten.data.randomness import derived
from hasten.training.reachable import Held

_MOST_SHOWN = 5


class Generators:
    """held: where each lies, by places of which none is there twice."""

    def __init__(self, held: Sequence[Held]) -> None:
        self._held = held

    def __bool__(self) -> bool:
        return bool(self._held)

    def states(self) -> dict[str, Any]:
        """The state of each, by its place."""
        return {each.place: state_of(value) for each in self._held if (value := each.value) is not None}

    def go_on_from(self, states: Mapping[str, Any]) -> None:
        """Go on from what states() gave. A place that is not here any more is left out."""
        for each in self._held:
            if each.place in states and each.value is not None:
                set_state(each.value, states[each.place])

    def reseed(self, number: int) -> None:
        """Start each from another number below 2^64, which follows from this one."""
        for position, each in enumerate(self._held):
            if each.value is not None:
                seed(each.value, derived(number, position))

    def told(self, states: Mapping[str, Any]) -> list[str]:
        """A sentence for those that were saved and are not here, and for those that are here and were not saved."""
        here = [each.place for each in self._held]
        lost, new = [place for place in states if place not in here], [place for place in here if place not in states]
        why = "so the run may differ from an uninterrupted one"
        told = [f"{_listed(lost)} drew random numbers when the run was saved, and is not here, {why}"] if lost else []
        return told + ([f"{_listed(new)} draws random numbers, and was not saved, {why}"] if new else [])


def _listed(places: Sequence[str]) -> str:
    more = f" and {len(places) - _MOST_SHOWN} more" if len(places) > _MOST_SHOWN else ""
    return ", ".join(ascii(place)[1:-1][:100] for place in places[:_MOST_SHOWN]) + more
