"""Whether a run in a folder is that of the processes before these: told by a launcher's count, or by ages."""

from __future__ import annotations

import os

import pytest

from hasten.facts.ranks import COUNTS_STARTS, Launched
from hasten.training.run_folder.folder_names import ASKED
from hasten.training.run_folder.restarted import was_restarted

LAUNCHER, MYSELF = 200.0, 400.0
BEFORE, BETWEEN, AFTER = 100.0, 300.0, 500.0


@pytest.fixture
def run(tmp_path, monkeypatch):
    began = {os.getppid(): LAUNCHER, os.getpid(): MYSELF}
    monkeypatch.setattr("hasten.training.run_folder.restarted._began", began.__getitem__)
    (tmp_path / ASKED).touch()
    return tmp_path


def found(monkeypatch, folder, began: float | None, starts: str | None) -> bool:
    monkeypatch.setattr("hasten.training.run_folder.restarted.launched", lambda: Launched(restarts=int(starts or 0)))
    if starts is None:
        monkeypatch.delenv(COUNTS_STARTS, raising=False)
    else:
        monkeypatch.setenv(COUNTS_STARTS, starts)
    if began is not None:
        os.utime(folder / ASKED, (began, began))
    return was_restarted(lambda: folder)


@pytest.mark.parametrize(
    ("began", "starts", "theirs"),
    [
        (BETWEEN, "0", True),  # a start for which the process of another machine was the reason
        (BETWEEN, "1", True),
        (BEFORE, "0", False),
        (BEFORE, "1", False),  # another run, which the first start was refused for
        (AFTER, "0", False),  # this very process has begun it
        (AFTER, "1", True),
        (BETWEEN, None, False),  # of no launcher that starts anew, as a shell
    ],
)
def test_a_run_is_theirs_that_is_younger_than_their_launcher_and_older_than_they(
    monkeypatch, run, began, starts, theirs
):
    assert found(monkeypatch, run, began, starts) is theirs


@pytest.mark.parametrize(("starts", "theirs"), [("0", False), ("1", True)])
def test_where_nothing_is_there_yet_only_a_count_tells(monkeypatch, tmp_path, starts, theirs):
    assert found(monkeypatch, tmp_path, None, starts) is theirs
