"""Tar archives, read strictly and never extracted: from bytes to the names and places of their members.

A shard is untrusted. Headers are read 512 bytes at a time, and their numbers count only within limits and within the
archive. Regular files are read, also under the long names of GNU and pax headers; folders are skipped; all else is
refused. A `tarfile.TarFile` would take a broken header for the end, and allocate as much memory as a header says.

Names follow webdataset: the text before the first dot of the last part of the path is the sample's key, the text after
it, in small letters, is the extension. Consecutive members with one key are one sample.

Sources: POSIX.1-2017, "pax", ustar interchange format; https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from tarfile import TarInfo
from typing import NoReturn

from hasten.errors import DataFailed

BLOCK = 512
KEY = "__key__"  # under which a sample has its key
END = bytes(2 * BLOCK)  # two empty blocks close an archive

LARGEST_MEMBER = 1 << 30  # bytes
MOST_MEMBERS = 64  # of one sample
LARGEST_HEADER = 1 << 16  # bytes of a header that gives the next member a long name

_NO_SAMPLE = re.compile(r"__[^/]*__($|/)")  # what webdataset takes for notes about a shard

ReadAt = Callable[[int, int], bytes]
"""read(offset, size): at most `size` bytes of the archive from there; fewer only where it ends."""


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file inside an archive. Offsets and sizes are in bytes."""

    name: str
    key: str  # of the sample that it belongs to; empty for a file that is no part of one
    extension: str
    start: int  # of its first header
    offset: int  # of its content
    size: int

    @property
    def end(self) -> int:
        """Where the next header begins."""
        return self.offset + padded(self.size)


def padded(size: int) -> int:
    """The size of so many bytes in an archive, which is made of whole blocks."""
    return -(-size // BLOCK) * BLOCK


def packed(name: str, content: bytes) -> bytes:
    """The bytes of a member in an archive, with nothing in them of the machine, its user or the time. name: ASCII, at
    most 100 characters. Raises ValueError for another one."""
    information = TarInfo(name)
    information.size = len(content)
    return information.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % BLOCK)


def members_of_archive(read: ReadAt, shard: str, size: int) -> Iterator[Member]:
    """The regular files of a whole archive of so many bytes, which two empty blocks must close. Raises as `members`."""
    place = yield from members(read, shard, 0, size)
    if read(place, len(END)) != END:
        _refuse("ends without the two empty blocks that close an archive: it was cut off", shard, place)


def members(read: ReadAt, shard: str, start: int, stop: int) -> Generator[Member, None, int]:
    """The regular files between two places of an archive, in their order; then the place of an empty block, or `stop`.

    shard: its name, for errors.

    Raises DataFailed, naming the shard, the offset and the member where it has a name, for anything else than folders
    and regular files of at most LARGEST_MEMBER bytes under relative names that stay below their folder.
    """
    place = first = start  # of the header, and of the first of the headers that belong to one member
    long_name = ""
    while place < stop and (header := read(place, BLOCK)) != END[:BLOCK]:
        found = _checked(header, shard, place)
        content = place + BLOCK
        place = content + padded(found.size)
        if found.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
            long_name = _long_name(read, shard, content, found, stop) or long_name
        elif found.type != tarfile.XGLTYPE:
            name = long_name or found.name
            member = Member(name, *_key_and_extension(name), first, content, found.size)
            if not found.isdir():
                _check(found, member, shard, stop)
                yield member
            long_name, first = "", place
    if long_name:
        _refuse("is cut off behind a long name", shard, place)
    return place


def samples(found: Iterator[Member], shard: str) -> Iterator[list[Member]]:
    """Members grouped into samples. Files without an extension, which belong to none, are skipped. Raises DataFailed
    for a sample with a member named KEY, with two of one extension, or of more than MOST_MEMBERS."""
    sample: list[Member] = []
    for member in found:
        if not member.key:
            continue
        if sample and member.key != sample[0].key:
            yield sample
            sample = []
        if member.extension == KEY:
            _refuse(f"has the extension {KEY}, which stands for the sample's key", shard, member.start, member)
        if any(member.extension == other.extension for other in sample):
            _refuse(f"is the second {member.extension!r} of its sample", shard, member.start, member)
        if len(sample) == MOST_MEMBERS:
            _refuse(f"is one too many: {MOST_MEMBERS} are the most of a sample", shard, member.start, member)
        sample.append(member)
    if sample:
        yield sample


def _key_and_extension(name: str) -> tuple[str, str]:
    folder, slash, last = name.rpartition("/")
    base, _, extension = last.partition(".")
    if not base or not extension or _NO_SAMPLE.match(name):
        return "", ""
    return folder + slash + base, extension.lower()


def _checked(header: bytes, shard: str, place: int) -> TarInfo:
    try:
        found = TarInfo.frombuf(header, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        _refuse(f"has a header that cannot be read: {error}", shard, place)
    if found.size < 0:
        _refuse(f"has a header with the size {found.size}", shard, place)
    return found


def _check(found: TarInfo, member: Member, shard: str, stop: int) -> None:
    name = member.name
    if not name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
        _refuse("has a name that leads out of the folder, or none", shard, member.start, member)
    if found.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        _refuse(f"is not a regular file: its type is {found.type!r}", shard, member.start, member)
    if member.size > LARGEST_MEMBER:
        _refuse(f"claims {member.size:,} bytes; {LARGEST_MEMBER:,} are the most", shard, member.start, member)
    if member.end > stop:
        _refuse(f"claims {member.size:,} bytes, and the archive ends before", shard, member.start, member)


def _long_name(read: ReadAt, shard: str, place: int, header: TarInfo, stop: int) -> str:
    """The name that an extended header gives to the next member; empty when it says nothing of it."""
    size = header.size
    if size > LARGEST_HEADER:
        _refuse(f"has an extended header of {size:,} bytes; {LARGEST_HEADER:,} are the most", shard, place)
    content = read(place, size) if place + padded(size) <= stop else b""
    if len(content) < size:
        _refuse("is cut off inside an extended header", shard, place)
    name = content.removesuffix(b"\0") if header.type == tarfile.GNUTYPE_LONGNAME else b""
    if header.type == tarfile.XHDTYPE:
        for keyword, value in _pax_records(content, shard, place):
            if keyword == b"size" or keyword.startswith(b"GNU.sparse"):
                _refuse(f"has an extended header that changes {keyword[:100]!r}", shard, place)
            name = value if keyword == b"path" else name
    try:
        return name.decode()
    except UnicodeDecodeError:
        _refuse(f"has the name {name[:100]!r}, which is not UTF-8", shard, place)


def _pax_records(content: bytes, shard: str, place: int) -> Iterator[tuple[bytes, bytes]]:
    """Of "25 path=a/long/name.jpg\\n", the keyword and the value; the number counts the whole record."""
    while content:
        digits = re.match(rb"([1-9][0-9]{0,5}) ", content)
        length = int(digits[1]) if digits else 0
        record = content[digits.end() : length] if digits else b""
        keyword, equals, value = record.partition(b"=")
        if length > len(content) or not keyword or not equals or not value.endswith(b"\n"):
            _refuse("has an extended header that cannot be read", shard, place)
        yield keyword, value[:-1]
        content = content[length:]


def _refuse(what: str, shard: str, place: int, member: Member | None = None) -> NoReturn:
    subject = "the archive" if member is None else f"member {member.name[:100]!r}"
    raise DataFailed(
        f"{subject} {what}",
        where=f"{shard}, byte {place:,}",
        fix="download or pack this shard again; hasten never extracts one, and reads nothing but regular files",
    )
