"""Turn a loader, which has epochs, into an arm that delivers a given number of batches and waits.

An epoch begins where the last one ended, inside whichever window that is, so what a loader does at its start (a new
order, workers that are told to begin again) is billed as often as it happens. A batch is held until the next one is
there, as a training loop does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

Epoch = Callable[[], Iterable[Any]]


def endless(epoch: Epoch) -> Callable[[int], None]:
    """A function that takes `steps` further batches, from one epoch after the other.

    Raises RuntimeError in the window that meets an epoch without a batch, which would otherwise never end.
    """
    batches = _one_after_another(epoch)

    def window(steps: int) -> None:
        for _ in islice(batches, steps):
            pass

    return window


def _one_after_another(epoch: Epoch) -> Iterator[Any]:
    while True:
        empty = True
        for batch in epoch():
            empty = False
            yield batch
        if empty:
            raise RuntimeError("an epoch had no batch")
