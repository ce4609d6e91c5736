"""Source files and notebooks: which are read, and their text."""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hasten.doctor.edits import LINE_END
from hasten.doctor.lint.notebooks import Cell, cells_of, text_of_cells
from hasten.errors import Unreadable
from hasten.regular_files import read_regular

SUFFIXES = (".py", ".ipynb")
MOST_CHARACTERS = 1_000_000  # of a file
LONGEST_LINE = 10_000  # characters
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


@dataclass(frozen=True, slots=True)
class Source:
    """A file's text in Python. cells: of a notebook, joined in the text; () of a plain file. left_alone: why --fix
    changes nothing in it; "" where it may."""

    path: str
    text: str
    cells: tuple[Cell, ...] = ()
    encoding: str = "utf-8"
    left_alone: str = ""

    @property
    def lines(self) -> list[str]:
        """As Python counts them: a form feed ends none."""
        return LINE_END.split(self.text)

    def place(self, line: int) -> tuple[int | None, int]:
        """The cell of a line of the text, from 1, and the line in it."""
        for cell in reversed(self.cells):
            if line >= cell.first_line:
                return cell.number, line - cell.first_line + 1
        return None, line

    def where(self, line: int) -> str:
        """A line of the text, for a message."""
        cell, inside = self.place(line)
        return f"{self.path}:{inside}" if cell is None else f"{self.path}:cell {cell}:{inside}"


def read(path: Path) -> Source:
    """Decoded as Python does. Raises Unreadable, also for more code than a person writes."""
    content = _content_of(path)
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
        text = content.decode(encoding)
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise Unreadable(f"cannot be read: {error}", where=str(path)) from error
    if path.suffix == ".ipynb":
        cells = cells_of(text, str(path))
        _check_size(text_of_cells(cells), path)
        return Source(str(path), text_of_cells(cells), cells, encoding, "it is a notebook")
    _check_size(text, path)
    survives = text.encode(encoding, errors="replace") == content  # not so in unicode_escape
    left_alone = _why_left_alone(path) if survives else "its encoding changes what it says"
    return Source(str(path), text, encoding=encoding, left_alone=left_alone)


def _check_size(text: str, path: Path) -> None:
    longest = max(map(len, LINE_END.split(text)))
    for number, most, what in (
        (len(text), MOST_CHARACTERS, "characters of code"),
        (longest, LONGEST_LINE, "characters in a line"),
    ):
        if number > most:
            fix = "if it is data, read it from a file of another kind, or exclude this one in [tool.hasten]"
            raise Unreadable(f"is not checked: it has {number:,} {what}, over {most:,}", where=str(path), fix=fix)


def _content_of(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> Unreadable:
    return Unreadable(f"cannot be read: {error.strerror or error}", where=str(path))


def _why_left_alone(path: Path) -> str:
    if path.suffix != ".py":
        return "its name does not end in .py"
    if path.is_symlink():
        return "it is a link"
    may_be_written = path.stat().st_mode & 0o222 and os.access(path, os.W_OK)  # root may write any file
    return "" if may_be_written else "it is read-only"


def files_in(paths: Iterable[Path]) -> tuple[list[Path], list[Unreadable]]:
    """The named files, and the files in named folders except hidden ones and installed packages, each once; and what
    could not be read."""
    files: dict[str, Path] = {}
    unreadable = list[Unreadable]()
    for path in paths:
        try:
            path.stat()
        except FileNotFoundError:
            fix = "name a file or a folder that exists"
            unreadable.append(Unreadable("does not exist", where=str(path), fix=fix))
        except OSError as error:  # a name that is too long, a link to itself
            unreadable.append(_unreadable(path, error))
        else:
            for each in _files_below(path, unreadable) if path.is_dir() else [path]:
                files.setdefault(os.path.abspath(each), each)
    return [*files.values()], unreadable


def _files_below(top: Path, unreadable: list[Unreadable]) -> list[Path]:
    found = list[Path]()

    def note(error: OSError) -> None:
        unreadable.append(_unreadable(Path(error.filename), error))

    for folder, inner, names in os.walk(top, onerror=note):
        inner[:] = sorted(each for each in inner if not each.startswith(".") and each not in _SKIPPED)
        paths = [Path(folder, each) for each in sorted(names) if not each.startswith(".")]
        found += [each for each in paths if each.suffix in SUFFIXES and each.is_file() and not each.is_symlink()]
    return found
