"""Which of several processes this one is, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among all that train together."""

    rank: int = 0
    size: int = 1

    @property
    def many(self) -> bool:
        return self.size > 1

    @property
    def leads(self) -> bool:
        """True on the one rank that writes files and talks to people."""
        return self.rank == 0


ALONE = Ranks()
