"""An evaluation computes the same loss as training does, and a loss has no mode: what it holds of its own, such as a
teacher that follows the model or a running centre, would move with every evaluation. Here it comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hasten.facts.machine import free_memory, ranks_here
from hasten.training.buffer_copies import Copies, Place
from hasten.training.forms import dense_bytes
from hasten.training.loss_parameters import LossParameters
from hasten.training.moving_buffers import has_moved, seen

_SPARE = 1.25  # of a copy's size, that must be free


@contextmanager
def unmoved_loss(held: LossParameters) -> Iterator[list[str]]:
    """Gives a list: after the block, the names of what has moved in it and could not be put back, as there was no room
    for a copy."""
    holders = [*held.holders, *(module._buffers for module in held.modules)]
    own = held.of_model()
    places = [Place(holder, name) for holder in holders for name, each in holder.items() if id(each) not in own]
    has_room = sum(dense_bytes(place.tensor) for place in places) * _SPARE < free_memory() / ranks_here()
    then, copies, left = [] if has_room else [seen(place.tensor) for place in places], Copies(), list[str]()
    copies.take(holders, places if has_room else [], large_on_host=True)
    try:
        yield left
    finally:
        left += [place.name for place, was in zip(places, then, strict=False) if has_moved(was, place.tensor)]
        copies.put_back()
        held.fit_containers()
