"""The store in which a failed rank reports its cause to the others, and by which silent ranks are found.

The store is on the first rank's machine, which may be the one that failed. So it is asked over a connection that was
made before, and every wait for an answer ends after a few seconds.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypeVar

from hasten.errors import RankFailed
from hasten.facts.ranks import Ranks
from hasten.parallel.torch_private import default_store

Value = TypeVar("Value")

_FAILED, _PRESENT = "failed", "present/"
_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Why a rank failed: the exit code, and a message."""

    code: int
    what: str


class FailureStore:
    """answered: False once the store did not answer; it is not asked again then."""

    def __init__(self, store: Any, ranks: Ranks) -> None:
        self._store = store.clone()
        self._store.set_timeout(timedelta(seconds=_ANSWER_SECONDS))
        self._ranks, self.answered = ranks, True

    def report(self, cause: Cause) -> RankFailed | None:
        """The failure that was reported first; None where it is this rank's own, or the store does not answer."""
        mine = json.dumps({"rank": self._ranks.rank, **asdict(cause)})
        first = self._asked(lambda: self._store.compare_set(_FAILED, "", mine))
        return self._failure(first) if first is not None else None

    def reported(self) -> RankFailed | None:
        """The failure that another rank has reported, if any."""
        first = self._asked(lambda: self._store.get(_FAILED) if self._store.check([_FAILED]) else b"")
        return self._failure(first) if first else None

    def silent(self, seconds: float) -> tuple[int, ...]:
        """Ranks that have not called this as well after so many seconds. Rank 0 where the store does not answer."""

        def register() -> bool:
            self._store.set(f"{_PRESENT}{self._ranks.rank}", "")
            return True

        def missing() -> tuple[int, ...]:
            until = time.monotonic() + seconds
            while True:
                found = tuple(rank for rank in range(self._ranks.size) if not self._store.check([f"{_PRESENT}{rank}"]))
                if not found or time.monotonic() >= until or self._store.check([_FAILED]):
                    return found
                time.sleep(_POLL_SECONDS)

        found = self._asked(missing, seconds) if self._asked(register) else None
        if found is None:
            return () if self._ranks.leads else (0,)
        return found

    def _failure(self, report: bytes) -> RankFailed | None:
        first = json.loads(report)
        if first["rank"] == self._ranks.rank:
            return None
        return RankFailed(first["what"], where=f"rank {first['rank']}", code=first["code"])

    def _asked(self, work: Callable[[], Value], seconds: float = 0.0) -> Value | None:
        """None where the store does not answer: a connection to a machine that is switched off waits for minutes,
        whatever its own timeout. seconds: how long the work takes by itself."""
        found = list[Value]()

        def ask() -> None:
            try:
                found.append(work())
            except RuntimeError:  # of torch, and of the connection
                return

        if self.answered:
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(seconds + _ANSWER_SECONDS)
            self.answered = bool(found)
        return found[0] if found else None


_of_this_group = list[tuple[Any, FailureStore]]()


def failure_store(ranks: Ranks) -> FailureStore:
    """For torch's default process group; the same object as long as that exists."""
    store = default_store()
    if not _of_this_group or _of_this_group[0][0] is not store:
        _of_this_group[:] = [(store, FailureStore(store, ranks))]
    return _of_this_group[0][1]


def named(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
