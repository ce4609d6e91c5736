"""A lock that is a file: one process has it, and nobody after that one has ended."""

from __future__ import annotations

import pytest

import dying
from hasten.checkpoint import file_lock, files
from hasten.checkpoint.file_lock import locked
from hasten.errors import StorageFailed

# Processes are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_a_lock_is_held_by_one_and_by_nobody_after_that(tmp_path):
    path = tmp_path / "lock"

    def held_there() -> bool:
        with locked(path, None) as held:
            return not held

    with locked(path, None) as held:
        assert held
        assert dying.ended(dying.started(held_there)), "two held it"
    with locked(path, None) as held:
        assert held
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_is_free_though_a_process_that_was_forked_meanwhile_lives_on(tmp_path):
    with dying.listening() as (tell, heard):
        with locked(tmp_path / "lock", None):
            child = dying.started(lambda: heard() == "end")
        with locked(tmp_path / "lock", None) as held:
            assert held
        tell("end")
        assert dying.ended(child)


def test_a_lock_whose_file_its_holder_removed_is_held_by_one_all_the_same(tmp_path, monkeypatch):
    """Three processes: the first holds it, the second has opened its file, the third comes when that is gone."""
    path, take = tmp_path / "lock", file_lock._taken
    first = locked(path, None)
    assert first.__enter__()

    def take_when_it_is_gone(*given):
        monkeypatch.setattr(file_lock, "_taken", take)
        files.remove_file(path)
        first.__exit__(None, None, None)
        return take(*given)

    monkeypatch.setattr(file_lock, "_taken", take_when_it_is_gone)
    with locked(path, None) as second, locked(path, None) as third:
        assert (second, third) == (True, False)


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageFailed, match="could not be opened"), locked(tmp_path / "lock", None):
        pass
    assert not (tmp_path / "elsewhere").exists()
