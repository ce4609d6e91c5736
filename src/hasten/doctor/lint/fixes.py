"""Fixes of findings in source files. Comments, line ends and formatting stay, and the result is Python."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from hasten.checkpoint.files import is_leftover, names_in, remove_file, write_atomically
from hasten.doctor.edits import Splice, Unspliceable, is_python, spliced, splices_of
from hasten.doctor.lint.linter import found_in
from hasten.doctor.lint.source_files import Source, read
from hasten.doctor.rule import Found, SourceRule

_MOST_ROUNDS = 10  # an edit that touches another one is made in the next round


@dataclass(frozen=True, kw_only=True, slots=True)
class Mended:
    """before, after: the whole text of the file. count: of fixed findings."""

    path: Path
    before: str
    after: str
    count: int
    encoding: str


def mend(path: Path, rules: Collection[SourceRule]) -> Mended | None:
    """The file with the edits of these rules; None where nothing changes. Nothing is written. Raises Unreadable."""
    source = read(path)
    if source.left_alone:
        return None
    after, count = source.text, 0
    for _ in range(_MOST_ROUNDS):
        again, mended = _mended_once(after, str(path), rules)
        if not mended:
            break
        after, count = again, count + mended
    if after == source.text:
        return None
    return Mended(path=path, before=source.text, after=after, count=count, encoding=source.encoding)


def why_left_alone(path: Path, rules: Collection[SourceRule]) -> str:
    """Why --fix changes nothing, although these rules have edits for the file; "" otherwise. Raises Unreadable."""
    source = read(path)
    return source.left_alone if source.left_alone and any(each.edits for _, each in found_in(source, rules)) else ""


def write(mended: Mended) -> None:
    """If this process is killed, the file has its old content or the new one. The next call removes temporary files
    that were left. Raises StorageFailed; the file has its old content then."""
    path = mended.path
    for name in names_in(path.parent):
        if is_leftover(name) and name.startswith(f".{path.name}."):
            remove_file(path.parent / name)
    write_atomically(path, mended.after.encode(mended.encoding), like=path.stat())


def _mended_once(text: str, path: str, rules: Collection[SourceRule]) -> tuple[str, int]:
    """With all edits that do not touch each other and leave the file Python; and the number of fixed findings."""
    mended, chosen, count = text, list[Splice](), 0
    for _, found in found_in(Source(path, text), rules):
        splices = _splices(found, text)
        if not splices or any(splice.touches(other) for splice in splices for other in chosen):
            continue
        again = spliced(text, [*chosen, *splices])
        if is_python(again):
            mended, chosen, count = again, [*chosen, *splices], count + 1
    return mended, count


def _splices(found: Found, text: str) -> list[Splice]:
    try:
        return [splice for edit in found.edits for splice in splices_of(edit, text)]
    except Unspliceable:
        return []
