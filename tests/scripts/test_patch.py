"""The patch of a plan: git and patch apply it from any folder, and it keeps encodings and line ends."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.errors import PlanError
from hasten.scripts.edits.patch import (
    PatchedFile,
    apply,
    options_without_effect,
    patch_of,
)
from hasten.scripts.edits.patch_file import is_written_by_hasten, read_patch
from hasten.scripts.edits.source_text import bytes_of, text_of

BEFORE = "import torch\n\n# größer\nloader = make(1)\n\n\ndef train():\n    pass\n\n\ntrain()\n"
SOURCES = {
    "line feeds": BEFORE.encode(),
    "carriage returns": BEFORE.replace("\n", "\r\n").encode(),
    "byte order mark": BEFORE.encode("utf-8-sig"),
    "another encoding": f"# -*- coding: latin-1 -*-\n{BEFORE}".encode("latin-1"),
    "no last line end": BEFORE.rstrip("\n").encode(),
    "form feed": BEFORE.replace("\n\n\n", "\n\x0c\n", 1).encode(),
}


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false"]
    return subprocess.run(["git", *own, *words], cwd=folder, capture_output=True, text=True, check=False)


def written(folder: Path, name: str, before: bytes) -> PatchedFile:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(before)
    text = text_of(before)
    assert "größer" in text
    after = bytes_of(text.replace("make(1)", "make(2)").replace("train()", "train()  # länger"), before)
    return PatchedFile(path=path, before=before, after=after)


def put(folder: Path, files: Sequence[PatchedFile]) -> str:
    patch = folder / "plan.patch"
    patch.write_bytes(patch_of(files, folder, patch, b"a plan", folder / "train.py"))
    return patch.name


def is_applied(patch: Path) -> bool:
    read = read_patch(patch)
    return read is not None and read.is_applied()


@pytest.fixture(params=["repository", "folder in a repository", "no repository"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "own" if request.param == "folder in a repository" else tmp_path
    folder.mkdir(exist_ok=True)
    if request.param != "no repository":
        assert git(tmp_path, "init", "-q").returncode == 0
    return folder


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_git_applies_it_once(here, source):
    file = written(here, "src/train it.py", source)
    patch = put(here, [file, written(here, "data.py", SOURCES["line feeds"])])
    assert not is_applied(here / patch)
    done = git(here, "apply", patch)
    assert done.returncode == 0, done.stderr
    assert file.path.read_bytes() == file.after
    assert is_applied(here / patch)
    assert git(here, "apply", patch).returncode == 1
    assert file.path.read_bytes() == file.after
    assert git(here, "apply", "--reverse", patch).returncode == 0
    assert file.path.read_bytes() == source


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_patch_applies_it(tmp_path, source):
    file = written(tmp_path, "train.py", source)
    words = ["patch", "-p1", "--binary", "-i", put(tmp_path, [file])]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert file.path.read_bytes() == file.after


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_its_files_are_read_as_they_are_once_it_is_applied(tmp_path, source):
    files = [written(tmp_path, "src/train it.py", source), written(tmp_path, "data.py", source)]
    longer = replace(files[1], after=files[1].after + b"\n# last line")
    patch = read_patch(tmp_path / put(tmp_path, [files[0], longer]))
    assert patch is not None
    assert patch.sources() == {files[0].path: files[0].after, longer.path: longer.after}
    longer.path.write_bytes(source + b"\n")
    assert patch.sources() is None


def test_hasten_applies_it_and_keeps_the_files_mode(tmp_path):
    file = written(tmp_path, "train.py", SOURCES["carriage returns"])
    file.path.chmod(0o754)
    patch = tmp_path / put(tmp_path, [file])
    apply([file])
    assert file.path.read_bytes() == file.after
    assert file.path.stat().st_mode & 0o777 == 0o754
    assert is_applied(patch)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["plan.patch", "train.py"]


def test_nothing_is_applied_where_one_file_has_changed_or_is_a_link(tmp_path):
    first, second = (written(tmp_path, name, SOURCES["line feeds"]) for name in ("a.py", "b.py"))
    second.path.write_bytes(b"changed")
    with pytest.raises(PlanError, match="has changed meanwhile"):
        apply([first, second])
    second.path.rename(tmp_path / "c.py")
    second.path.symlink_to(tmp_path / "c.py")
    with pytest.raises(PlanError, match="is a link"):
        apply([first, second])
    assert first.path.read_bytes() == first.before
    assert (tmp_path / "c.py").read_bytes() == b"changed"


def test_a_patch_of_another_program_is_known_as_such(tmp_path):
    (tmp_path / "plan.patch").write_text("--- a/train.py\n+++ b/train.py\n")
    assert not is_written_by_hasten(tmp_path / "plan.patch")
    assert not is_applied(tmp_path / "plan.patch")
    assert is_written_by_hasten(tmp_path / put(tmp_path, [written(tmp_path, "train.py", SOURCES["line feeds"])]))


def test_a_source_in_an_encoding_that_does_not_fit_is_refused():
    with pytest.raises(PlanError, match="encoding"):
        text_of("größer".encode("latin-1"))
    with pytest.raises(PlanError, match="encoding"):
        text_of(b"# coding: no-such-encoding\n")


def test_a_patch_names_the_options_that_it_disables(tmp_path):
    before = b'parser.add_argument("-j", "--workers")\nparser.add_argument("--lr")\nmake(args.workers, args.lr)\n'
    file = PatchedFile(path=tmp_path / "train.py", before=before, after=before.replace(b"args.workers", b"2"))
    notebook = PatchedFile(path=tmp_path / "train.ipynb", before=b"{}", after=b"{}")
    assert options_without_effect([file, notebook]) == ["--workers"]
