"""C is compiled once, kept where nobody else can write, and done without where it cannot be."""

import ctypes
import os
import shutil
import subprocess
import sys

import pytest
import torch

from hasten.kernels import compiled as module
from hasten.kernels.compiled import CannotCompile, compiled

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "caches" / "hasten" / "kernels"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "seven.c"
    path.write_text("int seven(void) { return 7; }\n")
    return path


def test_it_is_compiled_once_and_kept_for_its_owner_alone(caches, source, monkeypatch):
    assert compiled(source).seven() == 7
    (kept,) = caches.iterdir()
    assert caches.stat().st_mode & 0o777 == 0o700
    before = kept.stat().st_mtime_ns
    monkeypatch.setattr(module, "_made", None)
    assert compiled(source).seven() == 7
    assert [each.stat().st_mtime_ns for each in caches.iterdir()] == [before]


@pytest.mark.parametrize("what", ["source", "header", "flags", "compiler", "processor"])
def test_whatever_decides_what_it_is_compiles_it_anew(what, caches, source, monkeypatch):
    header = source.with_name("within.h")
    header.write_text("// nothing\n")
    source.with_name("beside.h").write_text('#include "within.h"\n')
    source.write_text(f'#include "beside.h"\n{source.read_text()}')
    compiled(source)
    if what == "header":
        header.write_text("// nothing either\n")
    elif what == "source":
        source.write_text("int seven(void) { return 3 + 4; }\n")
    elif what == "flags":
        monkeypatch.setattr(module, "FLAGS", (*module.FLAGS, "-g"))
    elif what == "compiler":
        monkeypatch.setenv("CC", "cc -Wall")
    else:
        monkeypatch.setattr(module, "_processor", lambda: "another one")
    assert compiled(source).seven() == 7
    assert len([*caches.iterdir()]) == 2


@pytest.mark.parametrize("changed", ["its size", "its time"])
@pytest.mark.parametrize("place", [0, 1], ids=["the first", "one behind another"])
def test_another_compiler_under_the_same_name_compiles_it_anew(changed, place, caches, source, tmp_path, monkeypatch):
    """As after an update; the first of a command may be a ccache."""
    programs = [tmp_path / "in_front", tmp_path / "compiler"]
    for program, does in zip(programs, ('exec "$@"', 'exec cc "$@"'), strict=True):
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    monkeypatch.setenv("CC", " ".join(map(str, programs)))
    compiled(source)
    updated, before = programs[place], programs[place].stat()
    later = before.st_mtime_ns
    if changed == "its size":
        updated.write_text(updated.read_text() + "\n")
    else:
        later += 1_000_000_000
    os.utime(updated, ns=(later, later))
    assert compiled(source).seven() == 7
    assert len([*caches.iterdir()]) == 2


def test_processors_are_told_apart_by_what_decides_their_code_and_by_nothing_else(tmp_path):
    def told(*lines, more=b""):
        place = tmp_path / "cpuinfo"
        place.write_bytes("\n".join(lines).encode() + more)
        return module._processor(str(place))

    first = ["processor : 0", "model : 106", "cpu MHz : 2900.0", "flags : sse avx2", "", ""]
    usual = told(*first)
    assert told(*first[:2], "cpu MHz : 800.0", *first[3:]) == usual
    assert told(*first, "processor : 1", *first[1:]) == usual, "however many cores it has"
    assert told(*first, more=b"\xff") == usual
    others = [told("model : 106", "flags : sse"), told("model : 107", *first[2:]), told("Features : asimd sve", "")]
    others += [told("Features : asimd sve", "CPU part : 0xd4f"), module._processor(str(tmp_path / "none"))]
    assert len({usual, *others}) == 6


def test_a_fault_in_the_source_is_the_reason_and_leaves_nothing(caches, source):
    source.write_text("int seven(void) { return }\n")
    with pytest.raises(CannotCompile, match=r"cc failed: .*seven.c.*"):
        compiled(source)
    assert [*caches.iterdir()] == []


def test_without_a_compiler_the_reason_names_what_was_looked_for(caches, source, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    with pytest.raises(CannotCompile, match="there is no C compiler here: no-such-compiler is not found"):
        compiled(source)


def test_a_compiler_that_does_not_end_is_given_up(caches, source, tmp_path, monkeypatch):
    stuck = tmp_path / "stuck"
    stuck.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    stuck.chmod(0o755)
    monkeypatch.setenv("CC", str(stuck))
    monkeypatch.setattr(module, "LONGEST_SECONDS", 0.2)
    with pytest.raises(CannotCompile, match=r"did not end within 0\.2 s"):
        compiled(source)


def test_code_that_others_can_write_is_not_run(caches, source):
    compiled(source)
    caches.chmod(0o777)
    with pytest.raises(CannotCompile, match="other users can write"):
        compiled(source)


def test_a_kept_library_that_is_damaged_is_made_anew(caches, source):
    damaged = caches / f"seven-{module._key(source, module._compiler(module._LANGUAGES['.c']))}.so"
    damaged.parent.mkdir(parents=True, mode=0o700)
    damaged.write_bytes(b"no library")
    assert compiled(source).seven() == 7
    assert damaged.stat().st_size > 1000


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("gcc '", "No closing quotation"),
        ("/", "/ is not found"),
        ("false", "false failed: it says nothing"),
        ("true", "true failed: it says nothing"),
        ("./text", "Exec format error"),
    ],
)
def test_a_compiler_that_cannot_be_run_is_a_reason(caches, source, tmp_path, monkeypatch, command, reason):
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CC", command)
    with pytest.raises(CannotCompile, match=reason):
        compiled(source)


def test_a_user_without_a_home_does_without(caches, source, monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", nowhere)
    with pytest.raises(CannotCompile, match="home directory"):
        compiled(source)


def test_many_processes_compile_the_same_at_once(caches, source):
    code = """
import pathlib, sys
from hasten.kernels.compiled import compiled
print(compiled(pathlib.Path(sys.argv[1])).seven())
"""
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(source)], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert [process.communicate(timeout=150)[0] for process in started] == ["7\n"] * 4
    assert [each.suffix for each in caches.iterdir()] == [".so"]


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_cpp_is_compiled_by_its_own_compiler_and_shares_the_threads_of_torch(caches, tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("CC", "no-such-compiler")
    source = tmp_path / "threads.cpp"
    source.write_text('#include <omp.h>\nextern "C" int threads() { return omp_get_max_threads(); }\n')
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert compiled(source).threads() == 1
        torch.set_num_threads(3)
        assert compiled(source).threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_process_that_is_killed_while_it_compiles_leaves_nothing_that_is_loaded(
    caches, source, tmp_path, monkeypatch
):
    killer = tmp_path / "killer"
    killer.write_text('#!/bin/sh\nfor last; do :; done\nprintf half > "$last"\nkill -9 $PPID\n')
    killer.chmod(0o755)
    program = f"from pathlib import Path; from hasten.kernels.compiled import compiled; compiled(Path({str(source)!r}))"
    ended = subprocess.run([sys.executable, "-c", program], env=os.environ | {"CC": str(killer)}, check=False)
    assert ended.returncode == -9
    assert not list(caches.glob("*.so"))
    assert compiled(source).seven() == 7


def test_other_threads_run_during_a_call(source, caches):
    """ctypes.CDLL gives the interpreter away; ctypes.PyDLL would not."""
    assert type(compiled(source)) is ctypes.CDLL


def test_a_disk_that_is_full_is_a_reason_and_no_failure(caches, source, monkeypatch):
    def refuse(*_):
        raise module.StorageFailed("could not be written: the disk is full", where=str(caches), fix="free space")

    monkeypatch.setattr(module, "write_atomically", refuse)
    with pytest.raises(CannotCompile, match="the disk is full"):
        compiled(source)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that nobody can write to")
def test_a_folder_that_nobody_can_write_to_is_a_reason(source, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self")
    with pytest.raises(CannotCompile, match="/proc/self/hasten"):
        compiled(source)


PICTURES = """
import sys
import hasten
from hasten.data.options import Placement
from hasten.data.loader import TrainLoader
from hasten.data.options import LoaderOptions
from hasten.data.sources import source_of
pictures = hasten.ImageFolder(sys.argv[1], hasten.RandomResizedCrop(16))
loader = TrainLoader(source_of(pictures, field="train"), batch_size=4, options=LoaderOptions(), seed=0)
print(*loader.notices, sep="\\n", file=sys.stderr)
for batch in loader.epoch(0):
    print(batch.batch[0].numpy().tobytes().hex())
"""


@pytest.mark.proof
def test_without_a_compiler_pictures_are_the_same_and_the_reason_is_said(tmp_path):
    from data.pictures import photos

    folder, told = photos(tmp_path / "photos", 8), {}
    for compiler in ("cc", "no-such-compiler"):
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "CC": compiler}
        done = subprocess.run(
            [sys.executable, "-c", PICTURES, str(folder)], capture_output=True, text=True, env=environment, check=True
        )
        told[compiler] = done.stdout, done.stderr
    assert told["cc"][0] == told["no-such-compiler"][0] != ""
    assert told["cc"][1] == "\n"
    assert "no-such-compiler is not found" in told["no-such-compiler"][1]
