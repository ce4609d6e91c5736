"""When a run saves checkpoints, and which of them it retains: what a user can set."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.errors import Misconfigured

EVERY_SECONDS = 60.0
_LONGEST_GRACE = 86400.0
MOST_COST = 0.01  # share of the time that saving may take


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """
    every_steps: optimizer steps between two saves. None saves by time, so that saving takes 1 % of it.
    every_seconds: at least so many between two saves by time.
    keep_last: how many of the newest are retained; 2 at least, in case the newest is damaged later.
    keep_best: retain the newest that was the best so far, by Job.keep, else by Job.stop.
    keep_every: retain those at multiples of so many steps.
    grace_seconds: from SIGTERM until the process must have ended. Schedulers usually wait 30 s.

    Raises Misconfigured.
    """

    every_steps: int | None = None
    every_seconds: float = EVERY_SECONDS
    keep_last: int = 2
    keep_best: bool = True
    keep_every: int | None = None
    grace_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, least in (("every_steps", 1), ("keep_last", 2), ("keep_every", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                fix = f"write a whole number of {least} or more"
                if name == "keep_last":
                    fix += ": an older one is retained in case the newest is damaged"
                raise Misconfigured(f"is {value!r}", where=f"Saving.{name}", fix=fix)
        for name in ("every_seconds", "grace_seconds"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise Misconfigured(f"is {value!r}", where=f"Saving.{name}", fix="write seconds, 0 or more")
        if self.grace_seconds > _LONGEST_GRACE:
            fix = "write how long the scheduler waits"
            raise Misconfigured(f"is {self.grace_seconds!r}", where="Saving.grace_seconds", fix=fix)


def seconds_between(saving: Saving, cost_seconds: float) -> float:
    """Between two saves by time, where one takes `cost_seconds` from training."""
    return max(saving.every_seconds, cost_seconds / MOST_COST)
