"""What code a job runs is told by a digest that changes with the user's own modules, and with nobody else's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hasten.facts.plan import Plan
from hasten.tune.trials import sources_digest as sources
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.sources_digest import digest_of_sources

JOBS = Path(__file__).parents[1] / "jobs" / "clocked_jobs.py"
JOB = "digits.py:job"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's that is loaded."""
    file = tmp_path / "helper.py"
    file.write_text("SIZE = 64\n")
    return loaded("helper", str(file), monkeypatch)


def loaded(name: str, file: object, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = file  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_change_in_a_module_of_the_users_changes_the_digest_and_touching_it_does_not(own: ModuleType):
    before, file = digest_of_sources(JOB), Path(str(own.__file__))
    os.utime(file, (1, 1))
    assert digest_of_sources(JOB) == before
    file.write_text("SIZE = 65\n")
    assert digest_of_sources(JOB) != before


def test_a_project_that_is_moved_stays_what_it_was(own: ModuleType, tmp_path: Path):
    before = digest_of_sources(JOB)
    (tmp_path / "elsewhere").mkdir()
    own.__file__ = shutil.move(str(own.__file__), tmp_path / "elsewhere")
    assert digest_of_sources(JOB) == before


def test_a_library_counts_only_where_it_holds_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "site-packages" / "library.py"
    file.parent.mkdir()
    file.write_text("")
    loaded("library", str(file), monkeypatch)
    before, inside = digest_of_sources(JOB), digest_of_sources("library.jobs:job")
    file.write_text("changed = True\n")
    assert digest_of_sources(JOB) == before
    assert digest_of_sources("library.jobs:job") != inside


def test_a_change_in_hasten_itself_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "heat.py").write_text("")
    monkeypatch.setattr(sources, "HASTEN", tmp_path)
    before = digest_of_sources(JOB)
    (tmp_path / "heat.py").write_text("changed = True\n")
    assert digest_of_sources(JOB) != before


def test_modules_without_a_file_that_can_be_read_break_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone, pipe = tmp_path / "gone.py", tmp_path / "pipe.py"
    os.mkfifo(pipe)
    for number, file in enumerate((None, 7, "", "nul\0.py", "\udcff", "x" * 5000, str(gone), str(pipe), str(tmp_path))):
        loaded(f"hostile_{number}", file, monkeypatch)
    monkeypatch.setitem(sys.modules, "hostile_none", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "hostile_object", object())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, 7, ModuleType("seven"))  # type: ignore[arg-type]
    assert digest_of_sources(JOB) == digest_of_sources(JOB)


def test_two_arms_of_the_same_code_have_the_same_digest_and_what_the_job_imports_counts(tmp_path: Path):
    shutil.copy(JOBS, tmp_path)
    (tmp_path / "jobs.py").write_text("import helper\nfrom clocked_jobs import job\n")
    (tmp_path / "helper.py").write_text("")
    first, second = digest_in_an_arm(tmp_path), digest_in_an_arm(tmp_path)
    (tmp_path / "helper.py").write_text("changed = True\n")
    assert first == second != digest_in_an_arm(tmp_path)


def digest_in_an_arm(folder: Path) -> str:
    with Arms(f"{folder / 'jobs.py'}:job").start("look", Plan()) as arm:
        return arm.ask("survey")["sources"]
