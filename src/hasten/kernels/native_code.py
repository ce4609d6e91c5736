"""Compile C and C++ for this processor on first use, and cache the library.

    library = compiled(Path("operator.cpp"))        # compiled the first time, and loaded from then on

The library is saved in the user's cache under a digest of the source, its headers, the flags, the compiler and the
processor. So one home directory can serve many machines, and a new version of hasten compiles again. Without a compiler
the plain forms of operators compute the same numbers, more slowly.

The functions are called through ctypes: torch's own way to build extensions needs half a minute for its headers, and
this a third of a second. ctypes releases Python's lock during a call.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from hasten.checkpoint.files import write_atomically
from hasten.checkpoint.folders.private_folders import user_cache
from hasten.checkpoint.folders.process_folder import process_folder
from hasten.errors import StorageFailed
from hasten.regular_files import check_regular, read_regular

_HERE = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-fPIC", "-shared")
LONGEST_SECONDS = 120
_DECISIVE = ("flags", "Features", "CPU part", "model")  # lines of /proc/cpuinfo


# C is compiled without contraction, so that a product and a sum are both rounded, as in torch, to the same bits.
# OpenMP's library is the one that torch has loaded, with its threads.
# file suffix -> (language, environment variable of its compiler, usual compiler, flags)
_LANGUAGES = {
    ".c": ("C", "CC", "cc", ("-std=c11", "-ffp-contract=off")),
    ".cpp": ("C++", "CXX", "c++", ("-std=c++17", "-ffp-contract=fast", "-fopenmp")),
}


class CannotCompile(Exception):
    """The source cannot be compiled here. The message is the reason, in words that end a sentence."""


def compiled(source: Path) -> ctypes.CDLL:
    """The library of a C or C++ file, compiled unless it is in the cache. Raises CannotCompile."""
    try:
        command = _compiler(*_LANGUAGES[source.suffix])
        cached = user_cache("kernels") / f"{source.stem}-{_key(source, command)}.so"
        with suppress(OSError):  # missing or damaged
            check_regular(cached)
            return ctypes.CDLL(str(cached))
        write_atomically(cached, _compile(source, command))
        return ctypes.CDLL(str(cached))
    except (StorageFailed, OSError, ValueError) as error:  # ValueError: unbalanced quotes in $CC or $CXX
        raise CannotCompile(str(error)) from error


def _compiler(language: str, variable: str, usual: str, flags: tuple[str, ...]) -> list[str]:
    """The command for this language: $CC or cc, $CXX or c++, and the language's flags."""
    command = shlex.split(os.environ.get(variable, "")) or [usual]
    found = shutil.which(command[0])
    if found is None:
        raise CannotCompile(f"there is no {language} compiler here: {command[0]} is not found")
    return [found, *command[1:], *flags]


def _key(source: Path, command: list[str]) -> str:
    headers = [read_regular(each) for folder in (source.parent, _HERE) for each in sorted(folder.glob("*.h"))]
    decisive = (read_regular(source), headers, FLAGS, command, processor())
    return hashlib.sha256(repr(decisive).encode()).hexdigest()[:32]


def processor(listing: str = "/proc/cpuinfo") -> str:
    """The properties of the processor that change the generated code."""
    try:
        lines = read_regular(listing).decode(errors="replace").splitlines(keepends=True)
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    first = takewhile(str.strip, lines)  # an empty line ends the first core
    return f"{platform.machine()} {[line for line in first if line.startswith(_DECISIVE)]}"


def _compile(source: Path, command: list[str]) -> bytes:
    with tempfile.TemporaryDirectory(dir=process_folder()) as folder:
        target = Path(folder) / "library.so"
        try:
            done = subprocess.run(
                [*command, *FLAGS, f"-I{_HERE}", str(source), "-o", str(target)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LONGEST_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise CannotCompile(f"{command[0]} did not finish within {LONGEST_SECONDS} s") from None
        if done.returncode != 0 or not target.exists():
            message = (done.stderr.strip().splitlines() or ["it printed nothing"])[0]
            raise CannotCompile(f"{command[0]} failed: {message}")
        return read_regular(target)
