"""C is compiled once, cached where only its owner can write, and reported with the reason where it cannot be."""

import ctypes
import shutil

import pytest
import torch

from hasten.kernels import native_code as module
from hasten.kernels.native_code import CannotCompile, compiled

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


def test_it_is_compiled_once_and_cached_for_its_owner_only(caches, source):
    assert type(compiled(source)) is ctypes.CDLL, "which releases Python's lock during a call"
    (cached,) = caches.iterdir()
    assert caches.stat().st_mode & 0o777 == 0o700
    before = cached.stat().st_mtime_ns
    assert compiled(source).seven() == 7
    assert [each.stat().st_mtime_ns for each in caches.iterdir()] == [before]


def test_a_damaged_library_in_the_cache_is_compiled_again(caches, source, tmp_path, monkeypatch):
    compiled(source)
    (cached,) = caches.iterdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "others"))
    damaged = tmp_path / "others" / "hasten" / "kernels" / cached.name
    damaged.parent.mkdir(parents=True, mode=0o700)
    damaged.write_bytes(b"no library")
    assert compiled(source).seven() == 7
    assert damaged.stat().st_size > 1000


@pytest.mark.parametrize("what", ["source", "header", "flags", "compiler", "processor"])
def test_a_change_of_whatever_decides_the_code_compiles_again(what, caches, source, monkeypatch):
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
        monkeypatch.setattr(module, "processor", lambda: "another one")
    assert compiled(source).seven() == 7
    assert len([*caches.iterdir()]) == 2


def test_processors_differ_only_by_what_decides_their_code(tmp_path):
    def properties(*lines, more=b""):
        place = tmp_path / "cpuinfo"
        place.write_bytes("\n".join(lines).encode() + more)
        return module.processor(str(place))

    first = ["processor : 0", "model : 106", "cpu MHz : 2900.0", "flags : sse avx2", "", ""]
    usual = properties(*first)
    assert properties(*first[:2], "cpu MHz : 800.0", *first[3:]) == usual
    assert properties(*first, "processor : 1", *first[1:]) == usual, "however many cores it has"
    assert properties(*first, more=b"\xff") == usual
    others = [
        properties("model : 106", "flags : sse"),
        properties("model : 107", *first[2:]),
        properties("Features : asimd sve", ""),
    ]
    others += [properties("Features : asimd sve", "CPU part : 0xd4f"), module.processor(str(tmp_path / "none"))]
    assert len({usual, *others}) == 6


def test_a_compiler_that_does_not_finish_is_stopped(caches, source, tmp_path, monkeypatch):
    stuck = tmp_path / "stuck"
    stuck.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    stuck.chmod(0o755)
    monkeypatch.setenv("CC", str(stuck))
    monkeypatch.setattr(module, "LONGEST_SECONDS", 0.2)
    with pytest.raises(CannotCompile, match=r"did not finish within 0\.2 s"):
        compiled(source)


def test_code_that_other_users_can_write_is_not_loaded(caches, source):
    compiled(source)
    caches.chmod(0o777)
    with pytest.raises(CannotCompile, match="other users can write"):
        compiled(source)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-compiler -O3", "there is no C compiler here: no-such-compiler is not found"),
        ("cc -include no-such-header.h", "cc failed: .*no-such-header"),
        ("gcc '", "No closing quotation"),
        ("true", "true failed: it printed nothing"),
    ],
)
def test_a_compiler_that_cannot_be_run_is_a_reason(caches, source, monkeypatch, command, reason):
    monkeypatch.setenv("CC", command)
    with pytest.raises(CannotCompile, match=reason):
        compiled(source)


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


def test_a_full_disk_is_a_reason_and_not_a_failure(caches, source, monkeypatch):
    def refuse(*_):
        raise module.StorageFailed("could not be written: the disk is full", where=str(caches), fix="free space")

    monkeypatch.setattr(module, "write_atomically", refuse)
    with pytest.raises(CannotCompile, match="the disk is full"):
        compiled(source)
