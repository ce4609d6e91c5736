"""The copy of the user's folder in which a trial runs, and what a trial cannot write to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from textwrap import dedent

import pytest

from hasten.errors import Misconfigured, PlanError
from hasten.facts.scripts.seen import PreparedData
from hasten.scripts.running.program import Program
from hasten.scripts.trials import scratch
from hasten.scripts.trials.prepared_data import LEAST_BYTES, keep, new_data, unchanged_data
from hasten.scripts.trials.scratch import LARGE_BYTES, check_unchanged, large_files, scratch_copy


def project(folder: Path) -> Path:
    (folder / "data" / "raw").mkdir(parents=True)
    (folder / "train.py").write_text("print('trains')\n")
    (folder / "data" / "raw" / "large.bin").write_bytes(b"0" * (LARGE_BYTES + 1))
    (folder / "data" / "small.csv").write_text("1,2\n")
    (folder / "runs").mkdir()
    (folder / "runs" / "best.pt").write_bytes(b"1" * (LARGE_BYTES + 1))
    return folder


def digests(folder: Path) -> Mapping[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in files}


def guarded(
    place: Path, users: Path, source: str, before: str = "", prepared: PreparedData | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a source in the copy, guarded. before: a source that runs before the copy is entered."""
    begin = f"""
    import os, pathlib, sys
    from hasten.facts.scripts.seen import PreparedData
    from hasten.scripts.running.program import Program
    from hasten.scripts.trials.scratch import scratch_copy
    from hasten.scripts.trials.write_guard import save_by_python
    os.chdir({str(users)!r})
    place = pathlib.Path({str(place)!r}) / "copy"
    copy = scratch_copy(Program(name="train.py"), pathlib.Path.cwd(), place, {prepared!r})
    copy.enter()
    save_by_python()
    users = pathlib.Path({str(users)!r})
    """
    program = f"users = {str(users)!r}\n{dedent(before)}{dedent(begin)}{dedent(source)}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_small_files_are_copied_and_large_ones_are_links(tmp_path, monkeypatch):
    users = project(tmp_path / "project")
    monkeypatch.chdir(users)
    copy = scratch_copy(Program(name="train.py"), users, tmp_path / "copy")
    assert (copy.folder / "train.py").read_text() == "print('trains')\n"
    assert not (copy.folder / "data" / "small.csv").is_symlink()
    assert (copy.folder / "data" / "raw" / "large.bin").is_symlink()
    assert copy.program.path.name == "train.py"
    assert copy.users_path(str(copy.folder / "data" / "small.csv")) == str(users / "data" / "small.csv")


def test_a_linked_file_that_has_changed_ends_the_search(tmp_path):
    users = project(tmp_path / "project")
    files = large_files(Program(name=str(users / "train.py")), users)
    assert {each.name for each in files} == {"large.bin", "best.pt"}
    (users / "data" / "small.csv").write_text("3,4\n")
    check_unchanged(files)
    with (users / "data" / "raw" / "large.bin").open("ab") as file:
        file.write(b"1")
    with pytest.raises(Misconfigured, match=r"large.bin: has changed since the trials began"):
        check_unchanged(files)


def test_what_lies_beside_the_folder_is_found_and_stays_unchanged(tmp_path):
    users = project(tmp_path / "work" / "project")
    beside = tmp_path / "work" / "data" / "raw"
    beside.mkdir(parents=True)
    (beside / "large.bin").write_bytes(b"0" * 3)
    (tmp_path / "shared").mkdir()
    before = digests(tmp_path)
    done = guarded(
        tmp_path / "trial",
        users,
        """
        import shutil
        assert open("../data/raw/large.bin", "rb").read() == b"000"
        assert os.path.isdir("../../shared")
        os.makedirs("../data/raw", exist_ok=True)
        open("../data/raw/large.bin", "ab").write(b"1")
        open("../data/raw/new.bin", "wb").close()
        os.mkdir("../../shared/logs")
        assert sorted(os.listdir("../data/raw")) == ["large.bin", "new.bin"]
        assert open("../data/raw/large.bin", "rb").read() == b"0001"
        shutil.rmtree("../data")
        """,
    )
    assert done.returncode == 0, done.stderr
    assert {name: value for name, value in digests(tmp_path).items() if "/trial/" not in name} == before


def test_a_file_beside_the_folder_has_the_users_path(tmp_path, monkeypatch):
    users = project(tmp_path / "work" / "project")
    monkeypatch.chdir(users)
    copy = scratch_copy(Program(name="train.py"), users, tmp_path / "copy")
    for file in (users / "train.py", users.parent / "common.py"):
        assert copy.users_path(os.path.abspath(copy.folder / os.path.relpath(file, users))) == str(file)
    assert copy.users_path("/elsewhere/common.py") == "/elsewhere/common.py"


def test_a_folder_of_many_files_without_a_source_is_a_link(tmp_path, monkeypatch):
    users = project(tmp_path / "project")
    monkeypatch.setattr(scratch, "MANY_FILES", 3)
    for number in range(5):
        (users / "data" / "raw" / f"{number}.jpg").touch()
    monkeypatch.chdir(users)
    copy = scratch_copy(Program(name="train.py"), users, tmp_path / "copy")
    assert (copy.folder / "data" / "raw").is_symlink()
    assert not (copy.folder / "data").is_symlink()


INSTALLED_BY_PATH = """
    import sys
    sys.path += [f"{users}/src", f"{users}/.venv/lib/site-packages"]
"""
INSTALLED_BY_FINDER = """
    import sys
    from importlib.util import spec_from_file_location
    from pathlib import Path

    class EditableFinder:  # as setuptools makes one
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            file = Path(users, "src", *name.split("."))
            files = [each for each in (file / "__init__.py", file.with_suffix(".py")) if each.exists()]
            return spec_from_file_location(name, files[0]) if files else None

    sys.meta_path.append(EditableFinder)
    sys.path.append(f"{users}/.venv/lib/site-packages")
"""


@pytest.mark.parametrize("installs", [INSTALLED_BY_PATH, INSTALLED_BY_FINDER], ids=["path", "finder"])
def test_an_installed_project_is_imported_from_the_copy(tmp_path, installs):
    users = project(tmp_path / "project")
    (users / "src" / "pack").mkdir(parents=True)
    (users / "src" / "pack" / "__init__.py").write_text("from pack.values import value\n")
    (users / "src" / "pack" / "values.py").write_text("value = 'original'\n")
    libraries = users / ".venv" / "lib" / "site-packages"
    libraries.mkdir(parents=True)
    (users / ".venv" / "pyvenv.cfg").touch()
    (libraries / "library.py").touch()
    imports = """
    copy.edit(str(users / "src" / "pack" / "values.py"), b"value = 'edited'")
    import json, library, pack, pack.values
    assert pack.value == "edited"
    for each in (pack, pack.values):
        assert each.__file__.startswith(str(copy.folder)), each.__file__
    assert library.__file__ == str(users / ".venv" / "lib" / "site-packages" / "library.py")
    """
    done = guarded(tmp_path / "trial", users, imports, before=installs)
    assert done.returncode == 0, done.stderr


def test_too_many_files_are_refused(tmp_path, monkeypatch):
    users = project(tmp_path / "project")
    monkeypatch.setattr(scratch, "MOST_FILES", 3)
    monkeypatch.chdir(users)
    with pytest.raises(Misconfigured, match="more than 3 files"):
        scratch_copy(Program(name="train.py"), users, tmp_path / "copy")


def test_what_a_trial_writes_in_its_copy_leaves_the_users_files(tmp_path):
    users = project(tmp_path / "project")
    before = digests(users)
    done = guarded(
        tmp_path / "trial",
        users,
        """
        import shutil, torch
        open("train.py", "a").write("changed")
        torch.save({"weights": torch.zeros(3)}, "runs/best.pt")
        open("data/raw/large.bin", "r+b").write(b"changed")
        os.rename("data/small.csv", "data/other.csv")
        os.makedirs("new/folder")
        shutil.rmtree("runs")
        os.remove("data/raw/large.bin")
        """,
    )
    assert done.returncode == 0, done.stderr
    assert digests(users) == before


@pytest.mark.parametrize(
    "write",
    [
        "open(users / 'train.py', 'w')",
        "(users / 'new.txt').write_text('')",
        "os.remove(users / 'train.py')",
        "os.rename('train.py', users / 'moved.py')",
        "os.mkdir(users / 'new')",
        "__import__('torch').save({}, users / 'runs' / 'best.pt')",
        "__import__('shutil').rmtree(users / 'runs')",
    ],
)
def test_a_write_to_the_users_own_folder_is_refused(tmp_path, write):
    users = project(tmp_path / "project")
    before = digests(users)
    done = guarded(tmp_path / "trial", users, write)
    assert "PermissionError: a trial does not write to" in done.stderr
    assert digests(users) == before


def test_a_file_without_a_copy_is_not_edited(tmp_path, monkeypatch):
    users, other = project(tmp_path / "project"), project(tmp_path / "other")
    (users / "linked").symlink_to(other)
    before = {**digests(users), **digests(other)}
    monkeypatch.chdir(users)
    copy = scratch_copy(Program(name="train.py"), users, tmp_path / "copy")
    for name in (users / "linked" / "train.py", other / "train.py"):
        with pytest.raises(PlanError, match="outside of the folder"):
            copy.edit(str(name), b"edited")
    copy.edit(str(users / "train.py"), b"edited")
    assert (copy.folder / "train.py").read_bytes() == b"edited"
    assert {**digests(users), **digests(other)} == before


def test_large_data_that_a_trial_writes_is_in_later_copies(tmp_path, monkeypatch):
    users, first = project(tmp_path / "work" / "project"), tmp_path / "first"
    (tmp_path / "work" / "data").mkdir()
    (tmp_path / "work" / "data" / "there.csv").touch()
    large = f"open(name, 'wb').write(b'0' * {LARGE_BYTES})"
    done = guarded(
        first,
        users,
        f"""
        os.makedirs("../data/digits")
        for name in ("../data/digits/1.bin", "new.bin"):
            {large}
        open("log.txt", "w").close()
        """,
    )
    assert done.returncode == 0, done.stderr
    found = new_data(first / "copy")
    prepared = keep(unchanged_data(found, found), first / "copy", tmp_path / "kept")
    assert prepared is not None
    assert set(prepared.paths) == {str(tmp_path / "work" / "data" / "digits"), str(users / "new.bin")}
    assert prepared.size_bytes == 2 * LARGE_BYTES
    monkeypatch.chdir(users)
    copy = scratch_copy(Program(name="train.py"), users, tmp_path / "second" / "copy", prepared)
    data = copy.folder.parent / "data"
    assert (data / "digits" / "1.bin").stat().st_size == LARGE_BYTES
    assert (data / "there.csv").exists()
    assert not (copy.folder / "log.txt").exists()
    assert sorted(path.name for path in (tmp_path / "work" / "data").iterdir()) == ["there.csv"]


def test_a_trial_that_prepares_nothing_large_keeps_nothing(tmp_path):
    users, first = project(tmp_path / "project"), tmp_path / "first"
    done = guarded(first, users, 'os.mkdir("runs/1")\nopen("runs/1/log.txt", "w").close()')
    assert done.returncode == 0, done.stderr
    found = new_data(first / "copy")
    assert keep(unchanged_data(found, found), first / "copy", tmp_path / "kept") is None


def written(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(LEAST_BYTES))


def test_a_folder_in_which_the_observed_steps_write_is_not_kept(tmp_path):
    for name in ("data/raw.bin", "out/vocabulary.bin", "saved.pt"):
        written(tmp_path / "copy" / name)
    first = new_data(tmp_path / "copy")
    for name in ("out/last.pt", "later.bin"):
        written(tmp_path / "copy" / name)
    (tmp_path / "copy" / "saved.pt").write_bytes(bytes(LEAST_BYTES + 1))
    assert unchanged_data(first, new_data(tmp_path / "copy")) == {"data": LEAST_BYTES}


def test_prepared_data_that_are_gone_before_they_are_kept_are_skipped(tmp_path):
    written(tmp_path / "copy" / "data.bin")
    found = {"cache.tmp": LEAST_BYTES, "data.bin": LEAST_BYTES}
    prepared = keep(found, tmp_path / "copy", tmp_path / "kept")
    assert prepared == PreparedData(folder=str(tmp_path / "kept"), paths=("/data.bin",), size_bytes=LEAST_BYTES)


def shared_data(folder: Path, users: Path) -> tuple[PreparedData, Path]:
    """And its file."""
    file = folder / (users / "digits" / "1.bin").relative_to(users.anchor)
    written(file)
    return PreparedData(folder=str(folder), paths=(str(users / "digits"),), size_bytes=LEAST_BYTES), file


def test_a_trial_does_not_write_into_prepared_data(tmp_path):
    users = project(tmp_path / "project")
    prepared, file = shared_data(tmp_path / "kept", users)
    done = guarded(
        tmp_path / "trial",
        users,
        """
        open("digits/1.bin", "ab").write(b"changed")
        shared = os.path.realpath(copy.place.parent.parent / "kept")
        open(shared + str(users / "digits" / "1.bin"), "ab")
        """,
        prepared=prepared,
    )
    assert "PermissionError: a trial does not write to" in done.stderr
    assert file.read_bytes() == bytes(LEAST_BYTES)


def test_a_lock_beside_prepared_data_is_the_trials_own(tmp_path):
    users = project(tmp_path / "project")
    prepared, file = shared_data(tmp_path / "kept", users)
    done = guarded(
        tmp_path / "trial",
        users,
        """
        folder = os.path.realpath("digits")
        open(folder + "/data.lock", "w").close()
        print(sorted(os.listdir("digits")))
        """,
        prepared=prepared,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(sorted(["data.lock", file.name]))
    assert [*file.parent.iterdir()] == [file]


def test_a_link_to_a_folder_among_prepared_data_stays_one(tmp_path):
    users = project(tmp_path / "project")
    prepared, file = shared_data(tmp_path / "kept", users)
    (file.parent / "up").symlink_to("..")
    says = 'print(os.path.islink("digits/up"), os.path.realpath("digits/up") == os.path.realpath("digits"))'
    done = guarded(tmp_path / "trial", users, says, prepared=prepared)
    assert done.stdout.strip() == "True False", done.stderr


def test_prepared_data_that_have_changed_end_the_search(tmp_path):
    users = project(tmp_path / "project")
    prepared, file = shared_data(tmp_path / "kept", users)
    file.write_bytes(bytes(LARGE_BYTES + 1))
    files = large_files(Program(name=str(users / "train.py")), users, prepared)
    file.write_bytes(b"changed in C")
    with pytest.raises(Misconfigured, match=r"1.bin: has changed since the trials began"):
        check_unchanged(files)


def test_what_a_script_has_written_is_gone_before_it_starts_again(tmp_path):
    users = project(tmp_path / "work" / "project")
    (users / "log.txt").write_text("of an earlier run\n")
    (users / "configs").mkdir()
    (users / "configs" / "small.toml").write_text("lr = 0.1\n")
    (tmp_path / "work" / "shared").mkdir()
    done = guarded(
        tmp_path / "trial",
        users,
        """
        import shutil, torch
        from hasten.scripts.trials.copy_contents import CopyContents

        def found():
            every = [each for each in (copy.place).rglob("*")]
            return {each: (os.readlink(each) if each.is_symlink() else each.is_file() and each.read_bytes())
                    for each in every}

        copy.edit(str(users / "train.py"), b"edited")
        contents, before = CopyContents(copy), found()
        inode = os.stat("data/small.csv").st_ino
        for _ in range(2):
            log = open("log.txt", "a")
            log.write("of this run")
            log.flush()
            open("train.py", "a").write("changed")
            open("data/raw/large.bin", "r+b").write(b"changed")
            torch.save({}, "runs/best.pt")
            torch.save({}, "../shared/last.pt")
            os.symlink("best.pt", "runs/last.pt")
            os.symlink(users / "data", "link")
            os.makedirs("new/folder")
            open("new/folder/file.txt", "w").close()
            shutil.rmtree("configs")
            open("configs", "w").close()
            assert found() != before
            contents.restore()
            assert found() == before
        assert os.stat("data/small.csv").st_ino == inode  # what is unchanged is not copied again
        """,
    )
    assert done.returncode == 0, done.stderr
