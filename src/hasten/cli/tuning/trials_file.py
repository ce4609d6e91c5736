"""The file of trials beside a plan, which an interrupted search continues from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.errors import Misconfigured
from hasten.facts.trials import Surveyed, line_of, read_trials, trials_beside

if TYPE_CHECKING:
    from hasten.checkpoint.files import GrowingFile
    from hasten.facts.trials import Record


class Trials:
    """The file of trials beside a plan. It is created, or continued, once the job's key is known."""

    def __init__(self, plan: Path) -> None:
        """Raises StorageFailed if it cannot be written, Misconfigured if it is another file; before the search."""
        from hasten.checkpoint.files import GrowingFile

        self._path = trials_beside(plan)
        self._file: GrowingFile | None = None
        self._records: list[Record] = []
        if not os.path.lexists(self._path):
            return
        self._records = read_trials(self._path)
        if self._path.stat().st_size and not any(isinstance(record, Surveyed) for record in self._records):
            fix = "choose another name with --output, or move the file"
            raise Misconfigured("exists, but is not a trials file", where=str(self._path), fix=fix)
        GrowingFile(self._path).close()

    def earlier(self, surveyed: Surveyed) -> Sequence[Record]:
        """The records of an earlier search with the same key; a file of another search is emptied."""
        from hasten.checkpoint.files import GrowingFile, write_atomically

        keys = [record.key for record in self._records if isinstance(record, Surveyed)]
        same = bool(keys) and keys[-1] == surveyed.key
        if not same:
            write_atomically(self._path, b"")
        self._file = GrowingFile(self._path)
        return self._records if same else []

    def keep(self, record: Record) -> None:
        assert self._file is not None
        self._file.add_line(line_of(record).encode())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
