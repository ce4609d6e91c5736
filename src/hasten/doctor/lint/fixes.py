"""Mending what was found: only the places that are meant change, and comments, line ends and formatting stay.

What is mended must still be Python and must no longer have the finding; else nothing of the file is written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten.checkpoint.files import is_leftover, names_in, remove_file, write_atomically
from hasten.doctor.lint.linter import found_in
from hasten.doctor.lint.source_files import Source, read
from hasten.doctor.lint.splices import Splice, Unspliceable, is_python, splices_of
from hasten.doctor.rule import Found, SourceRule

_MOST_ROUNDS = 10  # one finding's fix may make room for another's


@dataclass(frozen=True, kw_only=True, slots=True)
class Mended:
    """before, after: the whole text of the file. count: of findings that are gone."""

    path: Path
    before: str
    after: str
    count: int
    encoding: str


def mend(path: Path, rules: Collection[SourceRule]) -> Mended | None:
    """What the file would be, with the edits of these rules; None where nothing of it changes. Nothing is written.

    Raises Unreadable.
    """
    source = read(path)
    if source.left_alone:
        return None
    before = after = source.text
    count, seen = 0, {before}
    for _ in range(_MOST_ROUNDS):
        again, mended = _mended_once(after, str(path), rules)
        if again in seen:
            break
        after, count = again, count + mended
        seen.add(after)
    if after == before:
        return None
    return Mended(path=path, before=before, after=after, count=count, encoding=source.encoding)


def why_left_alone(path: Path, rules: Collection[SourceRule]) -> str:
    """Though these rules have edits for it; "" where they have none, or where they are made. Raises Unreadable."""
    source = read(path)
    return source.left_alone if source.left_alone and any(each.edits for _, each in found_in(source, rules)) else ""


def write(mended: Mended) -> None:
    """Killed at any instant, it leaves the old content or the new one; what it leaves beside an old one goes when that
    is mended again. Raises StorageFailed; the old content is whole then."""
    path = mended.path
    for name in names_in(path.parent):
        if is_leftover(name) and name.startswith(f".{path.name}."):
            remove_file(path.parent / name)
    write_atomically(path, mended.after.encode(mended.encoding), like=path.stat())


def _mended_once(text: str, path: str, rules: Collection[SourceRule]) -> tuple[str, int]:
    """All edits that do not touch each other."""
    source = Source(path, text)
    found = [each for _, each in found_in(source, rules) if each.edits]
    chosen, count = list[Splice](), 0
    for each in found:
        splices = _splices(each, text)
        if splices and not any(splice.touches(other) for splice in splices for other in chosen):
            chosen += splices
            count += 1
    mended = _spliced(text, chosen)
    return (mended, count) if is_python(mended) else _one_by_one(text, found)


def _one_by_one(text: str, found: Sequence[Found]) -> tuple[str, int]:
    """All that leave the file Python."""
    chosen, count = list[Splice](), 0
    for each in found:
        splices = _splices(each, text)
        apart = not any(splice.touches(other) for splice in splices for other in chosen)
        if splices and apart and is_python(_spliced(text, [*chosen, *splices])):
            chosen, count = [*chosen, *splices], count + 1
    return _spliced(text, chosen), count


def _splices(found: Found, text: str) -> list[Splice]:
    try:
        return [splice for edit in found.edits for splice in splices_of(edit, text)]
    except Unspliceable:
        return []


def _spliced(text: str, splices: Sequence[Splice]) -> str:
    for each in sorted(splices, key=lambda splice: splice.begin, reverse=True):
        text = text[: each.begin] + each.text + text[each.end :]
    return text
