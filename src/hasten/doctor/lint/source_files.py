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

SUFFIXES = (".py", ".ipynb")
_LARGEST_BYTES = {".py": 10 << 20, ".ipynb": 100 << 20}  # of more was not written by a person; notebooks hold pictures
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


@dataclass(frozen=True, slots=True)
class Source:
    """A file's text in Python. cells: of a notebook, joined in the text; () of a plain file. left_alone: why --fix
    writes nothing into it; "" where it does."""

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
        """Of a line of the text: its cell, from 1, and the line in it."""
        for cell in reversed(self.cells):
            if line >= cell.first_line:
                return cell.number, line - cell.first_line + 1
        return None, line

    def where(self, line: int) -> str:
        """For a message."""
        cell, inside = self.place(line)
        return f"{self.path}:{inside}" if cell is None else f"{self.path}:cell {cell}:{inside}"


def read(path: Path) -> Source:
    """As Python would decode it. Raises Unreadable."""
    content = _content_of(path)
    text, encoding = _decoded(content, str(path))
    if path.suffix == ".ipynb":
        cells = cells_of(text, str(path))
        return Source(str(path), text_of_cells(cells), cells, encoding, "it is a notebook")
    left_alone = _why_left_alone(path) if _comes_back(text, encoding, content) else "its encoding changes what it says"
    return Source(str(path), text, encoding=encoding, left_alone=left_alone)


def _why_left_alone(path: Path) -> str:
    try:
        found = path.stat()
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    if path.suffix != ".py":
        return "its name does not end in .py"
    if path.is_symlink():
        return "it is a link"
    if found.st_nlink > 1:
        return "it has other names, by hard links"
    may_be_written = found.st_mode & 0o222 and os.access(path, os.W_OK)  # root may write all
    return "" if may_be_written else "it is read-only"


def _comes_back(text: str, encoding: str, content: bytes) -> bool:
    """Whether its codec only encodes characters, and does no more."""
    try:
        return text.encode(encoding) == content
    except UnicodeError:
        return False


def _content_of(path: Path) -> bytes:
    largest = _LARGEST_BYTES.get(path.suffix, _LARGEST_BYTES[".py"])
    try:
        if not path.is_file():
            raise Unreadable("is no file", where=str(path))
        if path.stat().st_size > largest:
            raise Unreadable(f"is larger than {largest >> 20} MiB", where=str(path))
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def _decoded(content: bytes, where: str) -> tuple[str, str]:
    """With its own line ends; and the encoding, which the file names or is UTF-8. Raises Unreadable."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
        return content.decode(encoding), encoding
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise Unreadable(f"cannot be read: {error}", where=where) from error


def files_in(paths: Iterable[Path]) -> tuple[list[Path], list[Unreadable]]:
    """The files named, and those in named folders that are not hidden and not of installed packages, each once; and
    what could not be read."""
    files, unreadable = list[Path](), list[Unreadable]()
    for path in paths:
        try:
            if path.is_dir():
                _add_files_below(path, files, unreadable)
            elif path.exists():
                files.append(path)
            else:
                fix = "name a file or a folder that exists"
                unreadable.append(Unreadable("is not there", where=str(path), fix=fix))
        except (OSError, RuntimeError) as error:  # a name that is too long, a link to itself
            unreadable.append(Unreadable(f"cannot be read: {error}", where=str(path)))
    first: dict[str, Path] = {}
    for each in files:
        first.setdefault(os.path.abspath(each), each)
    return [*first.values()], unreadable


def _add_files_below(folder: Path, files: list[Path], unreadable: list[Unreadable]) -> None:
    try:
        inside = sorted(folder.iterdir())
        kinds = [(path, path.is_symlink(), path.is_dir(), path.is_file()) for path in inside]
    except OSError as error:
        unreadable.append(Unreadable(f"cannot be read: {error.strerror or error}", where=str(folder)))
        return
    for path, is_link, is_folder, is_file in kinds:
        if path.name.startswith(".") or is_link:
            continue
        if is_folder and path.name not in _SKIPPED:
            _add_files_below(path, files, unreadable)
        elif is_file and path.suffix in SUFFIXES:
            files.append(path)
