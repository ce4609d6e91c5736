"""C and C++ that is compiled on first use, for the processor that it runs on, and kept.

    library = compiled(Path("operator.cpp"))        # compiled the first time, and only loaded ever after

The code is kept in the user's own caches, under a name made of everything that decides what it is: source, flags,
compiler and processor. So one home directory can serve many machines, and a new version of hasten compiles anew. Who
has no compiler loses speed and nothing else: every operator has a plain form that gives the same numbers.

Plain functions through ctypes, because torch's own way to build extensions takes half a minute for its headers, and
this a third of a second. ctypes lets other threads run during a call.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from hasten.checkpoint.files import write_atomically
from hasten.checkpoint.folders.private_folders import user_cache
from hasten.checkpoint.folders.process_folder import process_folder
from hasten.errors import StorageFailed

_HERE = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-fPIC", "-shared")
LONGEST_SECONDS = 120
_TELLING = ("flags", "Features", "CPU part", "model")  # lines of /proc/cpuinfo


@dataclass(frozen=True, slots=True)
class Language:
    """variable: of the environment, that names a compiler; usual: where it names none."""

    name: str
    variable: str
    usual: str
    flags: tuple[str, ...]


# Without contraction, a product and a sum are rounded one after the other, as torch rounds them in what is to agree to
# the bit. OpenMP's library is the one that torch has loaded, with its threads.
_LANGUAGES = {
    ".c": Language("C", "CC", "cc", ("-std=c11", "-ffp-contract=off")),
    ".cpp": Language("C++", "CXX", "c++", ("-std=c++17", "-ffp-contract=fast", "-fopenmp")),
}
_INCLUDED = re.compile(rb'^#include "([^"/]+)"', re.MULTILINE)


class CannotCompile(Exception):
    """There is no compiled form here. The message is the reason, to end a sentence with."""


def compiled(source: Path) -> ctypes.CDLL:
    """The library that a file of C or C++ makes, compiled unless that was done before. Raises CannotCompile."""
    try:
        command = _compiler(_LANGUAGES[source.suffix])
        kept = user_cache("kernels") / f"{source.stem}-{_key(source, command)}.so"
        with suppress(OSError):  # not there, or damaged
            return ctypes.CDLL(str(kept))
        write_atomically(kept, _made(source, command))
        return ctypes.CDLL(str(kept))
    except (StorageFailed, OSError, ValueError) as error:  # ValueError: a $CC or $CXX that no shell could read
        raise CannotCompile(str(error)) from error


def _compiler(language: Language) -> list[str]:
    """The command that compiles this language here: $CC or cc, $CXX or c++, and the language's own flags."""
    command = shlex.split(os.environ.get(language.variable, "")) or [language.usual]
    found = shutil.which(command[0])
    if found is None:
        raise CannotCompile(f"there is no {language.name} compiler here: {command[0]} is not found")
    return [found, *command[1:], *language.flags]


def _key(source: Path, command: list[str]) -> str:
    programs = [os.stat(found) for each in command if (found := shutil.which(each))]  # also behind a ccache
    changes = [(each.st_size, each.st_mtime_ns) for each in programs]
    told = (source.read_bytes(), _headers(source), FLAGS, command, changes, _processor())
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def _headers(source: Path) -> list[bytes]:
    """What the source includes, and what that includes, of what lies beside it or here."""
    found, waiting = dict[Path, bytes](), [source]
    while waiting:
        text = waiting.pop().read_bytes()
        for name in _INCLUDED.findall(text):
            for header in (folder / name.decode() for folder in (source.parent, _HERE)):
                if header.exists() and header not in found:
                    found[header] = header.read_bytes()
                    waiting.append(header)
    return [*found.values()]


def _processor(told: str = "/proc/cpuinfo") -> str:
    """What tells processors apart that would be given different code."""
    try:
        with open(told, encoding="utf-8", errors="replace") as lines:
            first = [*takewhile(str.strip, lines)]  # an empty line ends the first of them
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return f"{platform.machine()} {[line for line in first if line.startswith(_TELLING)]}"


def _made(source: Path, command: list[str]) -> bytes:
    with tempfile.TemporaryDirectory(dir=process_folder()) as folder:
        target = Path(folder) / "made.so"
        try:
            done = subprocess.run(
                [*command, *FLAGS, f"-I{_HERE}", str(source), "-o", str(target)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LONGEST_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise CannotCompile(f"{command[0]} did not end within {LONGEST_SECONDS} s") from None
        if done.returncode != 0 or not target.exists():
            told = (done.stderr.strip().splitlines() or ["it says nothing"])[0]
            raise CannotCompile(f"{command[0]} failed: {told}")
        return target.read_bytes()
