"""Samples that cannot be read, and what stands in for them when the job asks for that.

By default a run stops at the first one and names it. With `on_bad_sample="replace"` another sample takes its place, the
same one in every run, for every number of workers and ranks, so that every batch keeps its size. All of them are told,
and when they come to more than one in a thousand of the data set, the run stops after all: so many are no accident.

Evaluations replace nothing: a metric counts every sample once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hasten.data.randomness import derived
from hasten.errors import DataFailed

MOST_SHARE = 0.001
ATTEMPTS = 16
_STAND_IN = int.from_bytes(b"standin", "big")


class Replaced(NamedTuple):
    sample: int
    by: int
    why: str


class Repaired(NamedTuple):
    """A batch in which samples stand in for others."""

    batch: Any
    replaced: tuple[Replaced, ...]


def stand_ins(seed: int, index: int, count: int) -> Iterator[int]:
    """Which samples to try in place of one of `count`, in this order: the same in every epoch."""
    for attempt in range(ATTEMPTS):
        yield derived(seed, _STAND_IN, index, attempt) % count


class Ledger:
    """Every sample of a run that was replaced, once each."""

    def __init__(self, field: str, count: int) -> None:
        self._field, self._count = field, count
        self._found: dict[int, Replaced] = {}
        self._untold = list[Replaced]()

    def take(self, replaced: tuple[Replaced, ...]) -> None:
        """Raises DataFailed when there are more than one in a thousand by now."""
        for each in replaced:
            if each.sample not in self._found:
                self._found[each.sample] = each
                self._untold.append(each)
        if len(self._found) > MOST_SHARE * self._count:
            last = replaced[-1]
            raise DataFailed(
                f"{len(self._found)} of {self._count} samples could not be read, which is more than "
                f"{MOST_SHARE:.1%} of them; the last was sample {last.sample}: {last.why}",
                where=f"Job.{self._field}",
                fix="look at the files, or take these samples out of the data set",
            )

    def untold(self) -> list[str]:
        """A sentence for each one found since this was last asked."""
        found, self._untold = self._untold, []
        return [
            f"sample {each.sample} of {self._field} cannot be read and is replaced by sample {each.by}: {each.why}"
            for each in found
        ]
