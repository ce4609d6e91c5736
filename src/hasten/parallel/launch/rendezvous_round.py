"""A name for the present start of a launch, which all its processes know and no earlier start had.

A launcher that restarts all processes may keep the store with the keys of earlier starts, and machines may count
restarts differently. So each process registers under a random key, and the first rank makes a name for the set of keys
that it sees, until every process confirms that its own key is in the set.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from hasten.errors import Hang
from hasten.facts.ranks import WAIT, Ranks
from hasten.parallel.launch.failure_store import named

_POLL_SECONDS = 0.02
_Wait = Callable[[Callable[[], tuple[int, ...]]], None]  # given a function that finds the missing ranks


def round_of(store: Any, ranks: Ranks, most_seconds: float) -> str:
    """All ranks call it together. Raises Hang, with their numbers, where some have not come after so many seconds."""
    until = time.monotonic() + most_seconds

    def wait(missing: Callable[[], tuple[int, ...]]) -> None:
        if time.monotonic() > until:
            what = f"the others have waited {most_seconds:g} s for it at the rendezvous of this run"
            fix = f"see whether it was started, and its output; {WAIT} sets the limit"
            raise Hang(what, where=named(missing()), fix=fix)
        time.sleep(_POLL_SECONDS)

    return _named(store, ranks, wait) if ranks.leads else _joined(store, ranks, wait)


def _named(store: Any, ranks: Ranks, wait: _Wait) -> str:
    others = {rank: f"here/{rank}" for rank in range(1, ranks.size)}

    def missing() -> tuple[int, ...]:
        return tuple(rank for rank, key in others.items() if not store.check([key])) or tuple(others)

    name, seen = "", list[bytes]()
    while not store.check([*others.values()]):
        wait(missing)
    while True:
        present = [store.get(each) for each in others.values()]
        if present != seen:  # one of them was of an earlier round
            name, seen = uuid.uuid4().hex, present
            store.set("round", b" ".join([name.encode(), *present]))
        if store.add(f"agreed/{name}", 0) == len(others):
            store.set(f"begun/{name}", "")
            return name
        wait(missing)


def _joined(store: Any, ranks: Ranks, wait: _Wait) -> str:
    own = uuid.uuid4().hex
    store.set(f"here/{ranks.rank}", own)
    agreed = ""
    while True:
        name, *present = store.get("round").decode().split() if store.check(["round"]) else [""]
        mine = len(present) >= ranks.rank and present[ranks.rank - 1] == own
        if mine and name != agreed:
            agreed = name
            store.add(f"agreed/{name}", 1)
        if mine and store.check([f"begun/{name}"]):
            return name
        wait(lambda: (0,))
