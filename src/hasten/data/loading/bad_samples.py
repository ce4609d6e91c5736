"""Samples that cannot be read, and their replacement when the job asks for one.

By default a run stops at the first one and names it. With `on_bad_sample="replace"` another sample takes its place, the
same one in every run, for every number of workers and ranks. Each is reported, and the run stops when they are more
than one in a thousand of the data set. Evaluations replace nothing: a metric counts every sample once.

Each rank has a ledger of those that it met, and adds the others' (training/loop.py). It is part of a run's state.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from hasten.data.loading.data_errors import is_out_of_memory
from hasten.data.order.randomness import derived
from hasten.errors import DataFailed, StorageFailed

MOST_SHARE = 0.001
SCARCE = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE})
ATTEMPTS = 16
_REPLACEMENT = int.from_bytes(b"standin", "big")


class Replaced(NamedTuple):
    sample: int
    by: int
    why: str


class Repaired(NamedTuple):
    """A batch in which samples were replaced."""

    batch: Any
    replaced: tuple[Replaced, ...]


def may_be_replaced(error: BaseException) -> bool:
    """Whether what a data set raised is an error of the sample: not a lack of memory, of files or of a disk, which
    another moment or another machine would not have; and not sys.exit()."""
    scarce = getattr(error, "errno", None) in SCARCE or is_out_of_memory(error)
    return not (scarce or isinstance(error, StorageFailed | SystemExit))


def replacements(seed: int, index: int, count: int) -> Iterator[int]:
    """Which samples to try in place of one of `count`, in this order: the same in every epoch."""
    for attempt in range(ATTEMPTS):
        yield derived(seed, _REPLACEMENT, index, attempt) % count


class Ledger:
    """Every sample of a run that was replaced, once each and in the order in which they were found."""

    def __init__(self, field: str, count: int) -> None:
        self._field, self._count = field, count
        self._found: dict[int, Replaced] = {}
        self._reported = 0  # of those found, from the first on

    def take(self, replaced: Iterable[Replaced]) -> None:
        """Raises DataFailed when there are more than one in a thousand by now; all of them are in the ledger then."""
        for each in replaced:
            self._found.setdefault(each.sample, each)
        if len(self._found) > MOST_SHARE * self._count:
            *_, last = self._found.values()
            many = f"{len(self._found)} of {self._count} samples"
            what = f"{many} could not be read, which is more than {MOST_SHARE:.1%} of them"
            fix = "check the files, or remove these samples from the data set"
            what += f"; the last was sample {last.sample}: {last.why}"
            raise DataFailed(what, where=f"Job.{self._field}", fix=fix)

    def waiting(self) -> list[Replaced]:
        """Those that are not reported yet."""
        return [*islice(self._found.values(), self._reported, None)]

    def unreported(self) -> Iterator[str]:
        """A sentence for each one that is not reported yet. It counts as reported when the next one is asked for, so a
        report that fails is repeated."""
        for sample, by, why in self.waiting():
            yield f"sample {sample} of {self._field} cannot be read and is replaced by sample {by}: {why}"
            self._reported += 1

    def state_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold: each sample found, its replacement, the reason, and how many are reported."""
        return {"found": [each._asdict() for each in self._found.values()], "told": self._reported}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._found = {each["sample"]: Replaced(**each) for each in state["found"]}
        self._reported = state["told"]
