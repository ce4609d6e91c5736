"""The key of a search changes with whatever may change a trial's result, and with nothing else."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hasten.tuning.trials import search_key
from hasten.tuning.trials.search_key import COUNTED, digest_of_sources, key_of

ANSWER = dict.fromkeys(COUNTED, "as it was") | {"proposed": [], "refused": {}}
ENVIRONMENT = {"hasten": "1", "python": "3", "torch": "2"}
JOBS = Path(__file__).parents[1] / "jobs" / "clocked_jobs.py"


@pytest.mark.parametrize("part", ["fingerprint", "proven_on", "total_steps", "evaluations", "sources"])
def test_another_job_machine_length_or_code_has_another_key(part: str):
    assert key_of(ANSWER | {part: "changed"}, ENVIRONMENT) != key_of(ANSWER, ENVIRONMENT)


def test_another_version_has_another_key_and_what_a_technique_says_has_not():
    assert key_of(ANSWER, ENVIRONMENT | {"torch": "3"}) != key_of(ANSWER, ENVIRONMENT)
    assert key_of(ANSWER | {"refused": {"cache": "why"}}, ENVIRONMENT) == key_of(ANSWER, ENVIRONMENT)


def test_other_options_of_the_job_have_another_key():
    keys = {key_of(ANSWER, ENVIRONMENT, options=words) for words in ([], ["--set", "lr=1"], ["--", "--lr", "1"])}
    assert len(keys) == 3
    assert key_of(ANSWER, ENVIRONMENT) in keys


@pytest.fixture(autouse=True)
def without_hasten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all of its files takes long."""
    monkeypatch.setattr(search_key, "HASTEN", tmp_path / "hasten")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's that is loaded."""
    file = tmp_path / "helper.py"
    file.write_text("SIZE = 64\n")
    return loaded("helper", file, monkeypatch)


def loaded(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_change_in_a_module_of_the_users_changes_the_digest_and_touching_it_does_not(own: ModuleType):
    before, file = digest_of_sources(), Path(str(own.__file__))
    os.utime(file, (1, 1))
    assert digest_of_sources() == before
    file.write_text("SIZE = 65\n")
    assert digest_of_sources() != before
    file.unlink()
    assert digest_of_sources() == digest_of_sources()


def test_a_project_that_is_moved_stays_what_it_was(own: ModuleType, tmp_path: Path):
    before = digest_of_sources()
    (tmp_path / "elsewhere").mkdir()
    own.__file__ = shutil.move(str(own.__file__), tmp_path / "elsewhere")
    assert digest_of_sources() == before


def test_a_library_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "site-packages" / "library.py"
    file.parent.mkdir()
    file.write_text("")
    loaded("library", file, monkeypatch)
    before = digest_of_sources()
    file.write_text("changed = True\n")
    assert digest_of_sources() == before


def test_a_change_in_hasten_itself_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "step.py").write_text("")
    monkeypatch.setattr(search_key, "HASTEN", tmp_path)
    before = digest_of_sources()
    (tmp_path / "step.py").write_text("changed = True\n")
    assert digest_of_sources() != before
