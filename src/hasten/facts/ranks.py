"""Which of several processes this one is, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that do something together.

    group: torch's process group in which they talk; None is the one of all processes.
    """

    rank: int = 0
    size: int = 1
    group: Any = field(default=None, compare=False, repr=False)

    @property
    def many(self) -> bool:
        return self.size > 1

    @property
    def leads(self) -> bool:
        """True on the one rank that writes files and talks to people."""
        return self.rank == 0


ALONE = Ranks()
