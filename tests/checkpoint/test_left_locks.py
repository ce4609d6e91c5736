"""The lock of a run's folder: what a killed holder has left, and a folder that is named from elsewhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hasten.checkpoint.locks.run_lock import run_lock
from hasten.errors import Misconfigured, StorageFailed
from support.checkpoint import file_faults


def left_by_a_killed_holder(folder: Path) -> int:
    """A process has the lock of its parent, which was killed; it ends when the descriptor that is given is closed."""
    ends, end = os.pipe()
    begun, begin = os.pipe()

    def hold() -> bool:
        with run_lock(folder) as lock:
            os.dup(lock._lock.descriptor)  # which is not closed at a fork
            if os.fork() == 0:
                os.close(end)
                os.write(begin, b"!")
                os.read(ends, 1)
                os._exit(0)
            os.read(begun, 1)
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    assert not file_faults.ended(file_faults.started(hold), but=-signal.SIGKILL)
    for each in (ends, begun, begin):
        os.close(each)
    return end


@pytest.mark.fault("stale lock")
def test_what_a_killed_holder_had_just_begun_is_waited_for(tmp_path, monkeypatch):
    end, waits = left_by_a_killed_holder(tmp_path), list[float]()

    def ended(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            os.close(end)

    monkeypatch.setattr("hasten.checkpoint.locks.run_lock.time.sleep", ended)
    with run_lock(tmp_path):
        assert len(waits) >= 2


@pytest.mark.fault("stale lock")
def test_what_stays_of_a_killed_holder_is_told_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.checkpoint.locks.run_lock.PATIENCE_SECONDS", 0.0)
    end = left_by_a_killed_holder(tmp_path)
    with (
        pytest.raises(Misconfigured, match=r"process [0-9]+ on .+ is not there, but something holds the lock"),
        run_lock(tmp_path),
    ):
        pass
    os.close(end)


def test_where_the_process_works_matters_to_a_folder_that_is_named_from_there_alone(tmp_path, monkeypatch):
    for name in ("near", "whole"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    with run_lock(Path("near")) as near, run_lock(tmp_path / "whole") as whole:
        monkeypatch.chdir("/")
        with pytest.raises(StorageFailed, match="has changed the working directory"):
            near.check()
        whole.check()
        monkeypatch.chdir(tmp_path)
        near.check()
