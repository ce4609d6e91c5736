"""A lock that is a file: one process has it, and nobody after that one has ended."""

from __future__ import annotations

import pytest

from hasten.checkpoint.locks.file_lock import locked
from hasten.errors import StorageFailed
from support.checkpoint import file_faults

# Processes are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_a_lock_is_held_by_one_and_by_nobody_after_that(tmp_path):
    path = tmp_path / "lock"

    def held_there() -> bool:
        with locked(path, None) as held:
            return not held

    with locked(path, None) as held:
        assert held
        assert file_faults.ended(file_faults.started(held_there)), "two held it"
    with locked(path, None) as held:
        assert held
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_is_free_though_a_process_that_was_forked_meanwhile_lives_on(tmp_path):
    with file_faults.listening() as (tell, heard):
        with locked(tmp_path / "lock", None):
            child = file_faults.started(lambda: heard() == "end")
        with locked(tmp_path / "lock", None) as held:
            assert held
        tell("end")
        assert file_faults.ended(child)


def test_a_forked_process_that_leaves_the_block_takes_the_lock_from_nobody(tmp_path):
    lock = locked(tmp_path / "lock", None)
    assert lock.__enter__()
    assert file_faults.ended(file_faults.started(lambda: lock.__exit__(None, None, None) is False))
    with locked(tmp_path / "lock", None) as held:
        assert not held
    lock.__exit__(None, None, None)


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageFailed, match="could not be locked"), locked(tmp_path / "lock", None):
        pass
    assert not (tmp_path / "elsewhere").exists()
