"""The lines of a user's code at which torch reports that Python waits for a GPU."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from hasten.scripts.trials.host_syncs import sync_reports_counted


def read_a_number() -> None:
    warnings.warn("called a synchronizing CUDA operation (Triggered internally at a place of torch's)", stacklevel=1)


def test_reports_are_counted_by_the_users_lines_and_not_printed(recwarn):
    with sync_reports_counted() as found:
        for _ in range(3):
            read_a_number()
    line = read_a_number.__code__.co_firstlineno + 1
    assert [(Path(file).name, at, count) for (file, at), count in found.items()] == [("test_host_syncs.py", line, 3)]
    assert not recwarn.list


def test_other_warnings_are_printed():
    with pytest.warns(UserWarning, match="of the script's own"), sync_reports_counted() as found:
        warnings.warn("of the script's own", stacklevel=1)
    assert not found
