"""The ways to start a training script: a file, a module, a console script, a notebook."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.errors import Misconfigured
from hasten.scripts.running.program import Program, program_of
from hasten.scripts.trials.scratch import roots_of, scratch_copy
from hasten.training.setup.load_job import split_name

STATES = "import sys; print(__name__, sys.argv[1:], value())\nif __name__ == '__main__': main()"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package "pack" whose modules import one another relatively; importing it is seen by a file."""
    inner = tmp_path / "project" / "pack" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    (inner.parent / "values.py").write_text("def value(): return 'original'\n")
    (inner / "__init__.py").touch()
    (inner / "train.py").write_text(f"from ..values import value\ndef main(): {STATES}\n")
    (inner / "__main__.py").write_text("from .train import main\nmain()\n")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def console_script(project: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of an installed project."""
    metadata = project / "pack-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: pack\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[console_scripts]\ntrain-pack = pack.inner.train:main\n")
    monkeypatch.syspath_prepend(str(project))
    return "train-pack"


def started(*words: str, folder: Path, others: str = "") -> str:
    """What it prints, unchanged by any plan."""
    command = [sys.executable, "-m", "hasten.scripts.running.start", "", *words]
    begin = f"import sys; sys.path.insert(0, {others!r}); sys.argv[:] = {command[2:]!r}; "
    if others:
        command = [sys.executable, "-c", f"{begin}from hasten.scripts.running.start import main; main()"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("name", "file"), [("pack.inner.train", "train.py"), ("pack.inner", "__main__.py")])
def test_a_module_is_found_and_nothing_of_it_is_imported(project, name, file):
    program = program_of(["-m", name, "--epochs", "3"])
    assert program.path == project / "pack" / "inner" / file
    assert program.root == project
    assert not (project / "imported").exists()


@pytest.mark.parametrize("name", ["pack.nothing", "nothing", "pack.inner.train.more"])
def test_a_module_that_is_not_there_is_refused(project, name):
    with pytest.raises(Misconfigured):
        program_of(["-m", name]).path  # noqa: B018


def test_a_console_script_is_the_function_that_it_calls(project, console_script):
    program = program_of([console_script, "--epochs", "3"])
    assert program.entry == "pack.inner.train:main"
    assert program.path == project / "pack" / "inner" / "train.py"
    assert program.root == project
    assert program.words == ["train-pack", "--epochs", "3"]


def test_a_name_that_is_nothing_is_refused(project):
    with pytest.raises(Misconfigured, match="is no file"):
        program_of(["train-nothing"]).path  # noqa: B018


@pytest.mark.parametrize("name", ["trian.py", "train"])
def test_a_name_that_is_nearly_a_scripts_is_answered_with_that(project, name):
    (project / "train.py").touch()
    for refuse in (lambda: program_of([name]).path, lambda: split_name(name)):
        with pytest.raises(Misconfigured) as refused:
            refuse()
        assert refused.value.fix == 'did you mean "train.py"?'


def test_the_copy_of_a_module_holds_its_whole_package(project, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.syspath_prepend(str(project))
    program = Program(name="pack.inner.train", is_module=True)
    assert roots_of(program, tmp_path / "elsewhere") == (tmp_path / "elsewhere", project)
    copy = scratch_copy(program, project, tmp_path / "copy")
    assert (copy.folder / "pack" / "values.py").is_file()


def test_a_trial_of_a_module_runs_the_copy(project, tmp_path):
    """And not what was found where the trial began."""
    source = f"""
import os, sys
from hasten.scripts.running.program import Program, run
from hasten.scripts.trials.script_process import in_scratch
os.environ["TMPDIR"] = {str(tmp_path / "trial")!r}
program = Program(name="pack.inner.train", is_module=True)
program.path
file = {str(project / "pack" / "values.py")!r}
run(in_scratch(program, {{file: "def value(): return 'edited'"}}).program)
"""
    (tmp_path / "trial").mkdir()
    command = [sys.executable, "-c", source]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "__main__ [] edited"
    assert not (project / "imported").exists()


@pytest.mark.proof
def test_each_way_runs_as_python_runs_it(project, console_script):
    (project / "cells.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": ["%time\n", "print(__name__)"]}], "metadata": {}})
    )
    folder = str(project)
    assert started("-m", "pack.inner", "--x", folder=project) == "pack.inner.train ['--x'] original"
    assert started(console_script, "--x", folder=project, others=folder) == "pack.inner.train ['--x'] original"
    assert started("cells.ipynb", folder=project) == "__main__"
