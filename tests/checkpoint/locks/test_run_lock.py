"""One process at a time trains into a folder; a lock whose holder is gone holds nobody up."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from hasten.checkpoint.locks.run_lock import NAME, RunLock, run_lock
from hasten.errors import Misconfigured, StorageFailed
from support.checkpoint import file_faults

# Processes are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def said(folder: Path) -> dict[str, object]:
    return json.loads((folder / NAME).read_text())


def me() -> dict[str, object]:
    return {"pid": os.getpid(), "started": psutil.Process().create_time(), "host": socket.gethostname()}


@contextmanager
def holder(folder: Path, also=lambda: None):
    """A child that holds the lock, until the test lets it end; `also` is called while it does."""
    with file_faults.listening() as (tell, heard), file_faults.listening() as (let_end, waits):

        def hold() -> bool:
            with run_lock(folder):
                also()
                tell("held")
                return waits() == "end"

        child = file_faults.started(hold)
        try:
            assert heard() == "held"
            yield child, lambda: let_end("end")
        finally:
            with suppress(ChildProcessError):  # the test has seen its end
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)


def refusal(folder: Path) -> Misconfigured:
    with pytest.raises(Misconfigured) as caught, run_lock(folder):
        raise AssertionError("two hold it")
    assert caught.value.where == str(folder)
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.fault("stale lock")
def test_the_file_says_who_holds_it_and_is_gone_afterwards(tmp_path):
    with run_lock(tmp_path):
        assert said(tmp_path) == me()
        assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == []


@pytest.mark.fault("stale lock")
def test_a_live_owner_is_refused_by_its_number_and_host_and_keeps_its_lock(tmp_path):
    with holder(tmp_path) as (child, let_end):
        for _ in range(2):
            error = refusal(tmp_path)
            assert error.what == f"process {child} on {socket.gethostname()} is training in this folder"
            assert "wait for it, end it" in error.fix
        assert said(tmp_path)["pid"] == child
        let_end()
        assert file_faults.ended(child)
    with run_lock(tmp_path):
        assert said(tmp_path) == me()


def test_the_same_process_cannot_take_it_twice_by_any_name_of_the_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    with run_lock(folder):
        for name in (folder, tmp_path / "link", folder / ".." / "run", Path(os.path.relpath(folder))):
            assert f"process {os.getpid()} on" in refusal(name).what
        assert said(folder) == me()
        assert file_faults.ended(file_faults.started(lambda: f"process {os.getppid()} on" in refusal(folder).what))
    with run_lock(tmp_path / "link"):
        assert said(folder) == me()


@pytest.mark.fault("stale lock")
def test_the_lock_of_an_owner_that_was_killed_is_taken_over_at_once(tmp_path):
    with holder(tmp_path) as (child, _):
        os.kill(child, signal.SIGKILL)
        assert not file_faults.ended(child, but=-signal.SIGKILL)
        assert said(tmp_path)["pid"] == child
        with run_lock(tmp_path):
            assert said(tmp_path) == me()
    assert os.listdir(tmp_path) == []


@pytest.mark.fault("stale lock")
def test_a_lock_that_something_else_holds_after_its_owner_ended_is_refused(tmp_path, monkeypatch):
    """As a process that a killed run was just starting can do for a moment."""
    monkeypatch.setattr("hasten.checkpoint.locks.run_lock.PATIENCE_SECONDS", 0.0)
    (tmp_path / NAME).write_text(json.dumps(me() | {"started": 0.0}))
    with open(tmp_path / NAME) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "has ended, but another process still holds the lock" in refusal(tmp_path).what
    with run_lock(tmp_path):
        assert said(tmp_path) == me()


# A folder that is another one by now


def check_lost(lock: RunLock, folder: Path) -> None:
    with pytest.raises(StorageFailed, match="was moved or removed") as caught:
        lock.check()
    assert (caught.value.where, caught.value.exit_code) == (str(folder), 15)


def test_a_lock_is_lost_with_its_folder_and_that_of_the_next_one_stays(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with run_lock(folder) as lock:
        lock.check()
        folder.rename(tmp_path / "moved")
        check_lost(lock, folder)
        folder.mkdir()
        check_lost(lock, folder)
        (folder / NAME).write_text("the next one's")
        check_lost(lock, folder)
    assert (folder / NAME).read_text() == "the next one's"


@pytest.mark.parametrize(("number", "name"), [(2, "open"), (5, "pwrite")])
def test_a_disk_that_refuses_the_file_is_told_and_nothing_is_left(tmp_path, number, name):
    failing = file_faults.failing(range(number, number + 1), errno.ENOSPC)
    with failing as refused, pytest.raises(StorageFailed) as caught, run_lock(tmp_path):
        raise AssertionError("it is held")
    assert refused[0].name == name
    assert caught.value.where == str(tmp_path / NAME)
    assert "free space" in caught.value.fix
    assert os.listdir(tmp_path) == []
    with run_lock(tmp_path):
        assert said(tmp_path) == me()


def test_killed_inside_any_operation_the_next_one_gets_the_lock(tmp_path):
    def work() -> None:
        with run_lock(tmp_path):
            pass

    number = 1
    while file_faults.killed_inside(number, work):
        with run_lock(tmp_path):
            assert said(tmp_path) == me()
        number += 1
    assert number > 3
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"[" * 900, b'{"pid": "\\u001b[2J", "host": 7}'])
def test_of_a_live_owner_whose_file_says_nothing_useful_no_number_is_told(tmp_path, content):
    with holder(tmp_path) as (child, let_end):
        (tmp_path / NAME).write_bytes(content)
        assert refusal(tmp_path).what == "another process is training in this folder"
        let_end()
        assert file_faults.ended(child)


# Where the system has no locks, the file decides


@pytest.fixture
def no_locks(monkeypatch):
    def refuse(*given: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_file_refuses_for_a_live_owner_and_not_for_a_dead_one(tmp_path):
    with holder(tmp_path) as (child, _):
        error = refusal(tmp_path)
        assert f"process {child} on {socket.gethostname()}" in error.what
        assert error.fix.endswith(f"when that has ended, remove {tmp_path / NAME}")
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
        with run_lock(tmp_path):
            assert said(tmp_path) == me()
        assert not file_faults.ended(child, but=-signal.SIGKILL)
    with run_lock(tmp_path):
        assert said(tmp_path) == me()
    assert os.listdir(tmp_path) == []


HERE = socket.gethostname()
STARTED = psutil.Process().create_time()


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize(
    ("owner", "holds"),
    [
        ({"pid": os.getpid(), "started": STARTED, "host": HERE}, True),
        ({"pid": os.getpid(), "started": STARTED - 1, "host": HERE}, False),  # its number was given anew
        ({"pid": 1, "started": STARTED, "host": "another"}, True),  # nobody can know
        ({"pid": 10**40, "started": STARTED, "host": HERE}, False),
        ([], False),
    ],
    ids=lambda value: "",  # a start time in a name would be another in every process
)
def test_without_locks_what_the_file_says_is_looked_at_before_it_is_believed(tmp_path, owner, holds):
    (tmp_path / NAME).write_text(json.dumps(owner))
    if holds:
        refusal(tmp_path)
        assert said(tmp_path) == owner
    else:
        with run_lock(tmp_path):
            assert said(tmp_path) == me()
