"""Which round of one launch its processes are in: a name that all of them know, and that no earlier round had.

A launcher that starts all anew may leave the store, with all that the ones before have written: to meet under their
names would be to wait for the dead. How often it has done so, no two machines need count alike. So each process says
that it is there under a name of its own, and the first makes a name for those that it sees, until all say that they are
these.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from hasten.errors import Hang
from hasten.facts.ranks import Ranks

_LOOK_SECONDS = 0.02


def round_of(store: Any, ranks: Ranks, most_seconds: float) -> str:
    """All ranks call it together. Raises Hang where one of them has not come after so many seconds, and what the store
    raises where its own patience is shorter."""
    until = time.monotonic() + most_seconds
    return _named(store, ranks, until) if ranks.leads else _joined(store, ranks, until)


def _named(store: Any, ranks: Ranks, until: float) -> str:
    others = [f"here/{rank}" for rank in range(1, ranks.size)]
    name, seen = "", list[bytes]()
    while True:
        present = [store.get(each) for each in others]  # waits for those that were never there
        if present != seen:  # one of them was of an earlier round
            name, seen = uuid.uuid4().hex, present
            store.set("round", b" ".join([name.encode(), *present]))
        if store.add(f"agreed/{name}", 0) == len(others):
            store.set(f"begun/{name}", "")
            return name
        _pause(until)


def _joined(store: Any, ranks: Ranks, until: float) -> str:
    own = uuid.uuid4().hex
    store.set(f"here/{ranks.rank}", own)
    agreed = ""
    while True:
        name, *present = store.get("round").decode().split()
        mine = len(present) >= ranks.rank and present[ranks.rank - 1] == own
        if mine and name != agreed:
            agreed = name
            store.add(f"agreed/{name}", 1)
        if mine and store.check([f"begun/{name}"]):
            return name
        _pause(until)


def _pause(until: float) -> None:
    if time.monotonic() > until:
        what = "the processes of this run have not all come to where they meet"
        raise Hang(what, fix="see what the others say, and whether all were started")
    time.sleep(_LOOK_SECONDS)
