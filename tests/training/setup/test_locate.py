"""From a name to a job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasten.errors import Misconfigured, UserCodeFailed
from hasten.training.setup.load_job import load_job, split_name

JOB = """
from support import small_job
import neighbour

def job():
    return small_job(seed=neighbour.SEED)

def with_defaults(seed=3):
    return small_job(seed=seed)

def with_arguments(seed):
    return small_job(seed=seed)

def nothing():
    pass

def wrong_field():
    return small_job(epochs=0)

def deep():
    return divide(0)

def divide(by):
    return 1 / by

def leaves():
    raise SystemExit(3)

ready = small_job()

if __name__ == "__main__":
    raise AssertionError("loaded as a script")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with jobs; the path and the modules that loading them adds are taken away again."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "my_jobs.py").write_text(JOB)
    (tmp_path / "jobs" / "neighbour.py").write_text("SEED = 7\n")
    (tmp_path / "jobs" / "broken.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "jobs" / "needy.py").write_text("import no_such_package_anywhere\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_a_file_is_loaded_with_its_neighbours_and_not_as_a_script(folder: Path):
    assert load_job("jobs/my_jobs.py:job").seed == 7
    assert load_job(f"{folder}/jobs/my_jobs.py:with_defaults").seed == 3


def test_a_file_named_like_a_loaded_module_replaces_nothing(folder: Path):
    (folder / "json.py").write_text("from support import small_job as job\n")
    import json

    load_job("json.py:job")
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("name", "says", "fix"),
    [
        ("jobs/my_jobs.py", "names a file, and no function in it", "name jobs/my_jobs.py:job"),
        ("my_jobs", "does not name a function", "digits.py:job"),
        (":job", "does not name a function", "digits.py:job"),
        ("jobs/my_jobs.py:not a name", "does not name a function", "digits.py:job"),
        ("jobs/my_job.py:job", "no such file", 'did you mean "my_jobs.py"?'),
        ("nowhere/my_job.py:job", "no such file", "check the path"),
        ("jobs/my_job.py", "no such file", 'did you mean "my_jobs.py"?'),
        ("jobs", "is a folder", "hasten tune also takes a script, such as train.py"),
        ("jobs:job", 'there is no function "job"', "add one, def job(), and name jobs:job"),
        ("no_such_module:job", 'there is no module "no_such_module"', "no_such_module.py"),
        ("jobs/my_jobs.py:jobb", 'there is no function "jobb"', 'did you mean "job"?'),
        (
            "jobs/my_jobs.py:with_arguments",
            "needs arguments: with_arguments(seed)",
            "give them defaults, or name another function",
        ),
        (
            "jobs/my_jobs.py:nothing",
            "returned None (NoneType)",
            "a job is a function without arguments that returns hasten.Job(model",
        ),
        ("jobs/my_jobs.py:ready", "not a function", "make it a function"),
    ],
)
def test_a_name_that_leads_to_no_job_is_refused_with_the_fix(folder: Path, name: str, says: str, fix: str):
    with pytest.raises(Misconfigured) as caught:
        load_job(name)
    assert says in str(caught.value)
    assert fix in caught.value.fix


SCRIPT = """
def main():
    train(1)

def train(epochs):
    print("trained")

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("script.py", "names a file, and no function in it"),
        ("script.py:main", "returned None (NoneType), and no job"),
        ("script.py:job", 'there is no function "job"'),
    ],
)
def test_a_script_without_a_job_is_refused_with_what_a_job_is(folder: Path, name: str, says: str):
    (folder / "script.py").write_text(SCRIPT)
    with pytest.raises(Misconfigured) as caught:
        load_job(name)
    assert str(caught.value).startswith(f"{name}: {says}; of its functions main, train, none makes a hasten.Job\n")
    assert "a job is a function without arguments that returns hasten.Job(model=…" in caught.value.fix
    assert caught.value.fix.endswith("add one, def job(), and name script.py:job")


def test_a_function_of_the_file_that_makes_a_job_is_named(folder: Path):
    (folder / "script.py").write_text(f"import hasten\n{SCRIPT}\ndef mine() -> hasten.Job: ...\n")
    for name in ("script.py", "script.py:main", "script.py:training_of_mine_that_is_not_there"):
        with pytest.raises(Misconfigured) as caught:
            load_job(name)
        assert caught.value.fix == "name a function that returns a job: script.py:mine"


def test_of_a_notebook_the_job_is_to_be_written_to_a_file(folder: Path):
    with pytest.raises(Misconfigured, match="is a notebook, and a job is loaded from a Python file") as caught:
        split_name("work/nb.ipynb:job")
    assert "%%writefile nb.py, run it, and name nb.py:job" in caught.value.fix


def test_splitting_a_name_loads_nothing(folder: Path):
    assert split_name("jobs/broken.py:f") == ("jobs/broken.py", "f")
    assert split_name("package.module:job") == ("package.module", "job")


@pytest.mark.parametrize(
    ("name", "what", "where"),
    [
        ("jobs/my_jobs.py:deep", "ZeroDivisionError: division by zero", "jobs/my_jobs.py:24, in divide"),
        ("jobs/my_jobs.py:leaves", "SystemExit: 3", "jobs/my_jobs.py:27, in leaves"),
        ("jobs/broken.py:f", "SyntaxError: invalid syntax", "jobs/broken.py:2"),
        ("jobs/needy.py:job", "ModuleNotFoundError: No module named 'no_such_package_anywhere'", "jobs/needy.py:1, in"),
    ],
)
def test_what_the_users_code_raises_is_placed_in_their_code(folder: Path, name: str, what: str, where: str):
    with pytest.raises(UserCodeFailed) as caught:
        load_job(name)
    assert caught.value.exit_code == 10
    assert caught.value.what == what
    assert caught.value.where.startswith(where)
    assert caught.value.__cause__ is not None


def test_a_file_that_fails_to_load_leaves_no_half_made_module(folder: Path):
    for _ in range(2):
        with pytest.raises(UserCodeFailed):
            load_job("jobs/needy.py:job")
        assert "needy" not in sys.modules
