"""Tar archives, read strictly and never extracted: from bytes to the names and places of their members.

A shard is untrusted. The parser knows regular files and the three headers that give one a long name; all else is
refused with its reason. It reads headers only, 512 bytes at a time, and accepts their numbers only within limits and
within the archive, so that no file makes it run long or take memory.

The standard library's `tarfile` is lenient by design: it reads links, devices and sparse files, takes a broken header
in the middle for the end, and allocates as much memory as a header says. Not read here: archives without the word
"ustar", compressed archives, sparse files, and names that are not UTF-8.

Names follow webdataset: the text before the first dot of the last part of the path is the sample's key, the text after
it, in small letters, is the extension. Consecutive members with one key are one sample.

Sources: POSIX.1-2017, "pax", ustar interchange format; GNU tar manual, "Basic Tar Format";
https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from tarfile import USTAR_FORMAT, TarInfo
from typing import NoReturn

from hasten.errors import DataFailed

BLOCK = 512
END = bytes(2 * BLOCK)  # two empty blocks close an archive
ZEROS = bytes(BLOCK)

LARGEST_MEMBER = 1 << 30  # bytes
MOST_MEMBERS = 64  # of one sample
LARGEST_NAME = 1 << 12  # bytes, and so the largest header that only carries a name
LARGEST_PAX = 1 << 16  # bytes of one extended header

_NO_SAMPLE = re.compile(r"__[^/]*__($|/)")  # what webdataset takes for notes about a shard
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"5": "a folder"}
_KINDS |= {b"6": "a pipe", b"7": "a contiguous file", b"S": "a sparse file", b"K": "a link with a long target"}

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
    """The bytes of a member in an archive, with nothing in them of the machine, its user or the time.

    name: ASCII, at most 100 characters. Raises ValueError for another one.
    """
    information = TarInfo(name)
    information.size = len(content)
    return information.tobuf(USTAR_FORMAT) + content + bytes(-len(content) % BLOCK)


def members(read: ReadAt, shard: str, size: int) -> Iterator[Member]:
    """The regular files of an archive of so many bytes, in their order. Folders are skipped.

    shard: its name, for errors.

    Raises DataFailed, naming the shard, the offset and the member where it has a name, for anything else than regular
    files of at most LARGEST_MEMBER bytes under relative names that stay below their folder, and two empty blocks.
    """
    place = yield from _members(read, shard, 0, size)
    if place >= size:
        _refuse("ends without the two empty blocks that close an archive: it was cut off", shard, place)
    if read(place, len(END)) != END:
        _refuse(_EMPTY, shard, place)


def members_between(read: ReadAt, shard: str, start: int, stop: int) -> Iterator[Member]:
    """The same of a piece from the middle of an archive, which nothing closes."""
    place = yield from _members(read, shard, start, stop)
    if place < stop:
        _refuse(_EMPTY, shard, place)


_EMPTY = "is empty where a member should begin"


def _members(read: ReadAt, shard: str, start: int, stop: int) -> Generator[Member, None, int]:
    """Members until an empty block or `stop`, and then the offset of that."""
    place = first = start  # of the header, and of the first of the headers that belong to one member
    long_name = ""
    while place < stop:
        header = read(place, BLOCK)
        if len(header) < BLOCK:
            _refuse("is cut off inside a header", shard, place)
        if header == ZEROS:
            break
        kind, size = _checked(header, shard, place)
        content, place = place + BLOCK, place + BLOCK + padded(size)
        if kind in (b"x", b"g", b"L"):
            name = _long_name(read, shard, content, kind, size, stop)
            if name and long_name:
                _refuse("gives one member two long names", shard, content)
            long_name = name or long_name
            continue
        name = long_name or _short_name(header, shard, content)
        _check_name(name, shard, first)
        member = Member(name, *_key_and_extension(name), first, content, size)
        if kind != b"5" or size or not member.name.endswith("/"):
            _check_file(kind, member, shard, stop)
            yield member
        long_name, first = "", place
    if long_name:
        _refuse(_EMPTY if place < stop else "is cut off behind a long name", shard, place)
    return place


def samples(found: Iterator[Member], shard: str) -> Iterator[list[Member]]:
    """Members grouped into samples. Files without an extension, which belong to none, are skipped.

    Raises DataFailed for a sample with two members of one extension, or of more than MOST_MEMBERS.
    """
    sample: list[Member] = []
    for member in found:
        if not member.key:
            continue
        if sample and member.key != sample[0].key:
            yield sample
            sample = []
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


def _checked(header: bytes, shard: str, place: int) -> tuple[bytes, int]:
    """The kind and the size of what follows a header, after the header is checked."""
    if header[257:265] not in (b"ustar\x0000", b"ustar  \0"):
        _refuse("has something else than a tar header where one should be", shard, place)
    stated = header[148:156]  # the sum of all bytes, these eight taken for spaces
    if _octal(stated) != sum(header) - sum(stated) + 8 * ord(" "):
        _refuse("has a header whose checksum is wrong", shard, place)
    field = header[124:136]
    size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _octal(field)  # GNU's form for large sizes
    if size is None:
        _refuse(f"has a header with the size {field!r}, which is no number", shard, place)
    return header[156:157], size


def _check_file(kind: bytes, member: Member, shard: str, stop: int) -> None:
    if kind not in (b"0", b"\0"):
        what = f"is {_KINDS.get(kind, f'of the unknown kind {kind!r}')}, and no regular file"
        _refuse(what, shard, member.start, member)
    if member.size > LARGEST_MEMBER:
        what = f"claims {member.size:,} bytes; {LARGEST_MEMBER:,} are the most"
        _refuse(what, shard, member.start, member)
    if member.end > stop:
        what = f"claims {member.size:,} bytes, and the archive ends before: it was cut off"
        _refuse(what, shard, member.start, member)


def _octal(field: bytes) -> int | None:
    digits = field.strip(b" \0")
    try:
        return int(digits, 8) if digits.isdigit() else None  # int alone would take a sign and underscores
    except ValueError:  # of an 8 or a 9
        return None


def _short_name(header: bytes, shard: str, place: int) -> str:
    prefix = header[345:500] if header[263:265] == b"00" else b""  # GNU keeps other things there
    parts: list[str] = []
    for field in (prefix, header[:100]):
        text, _, rest = field.partition(b"\0")
        if rest.strip(b"\0"):
            _refuse("has a name that continues after a NUL", shard, place)
        if text:
            parts.append(_decoded(text, shard, place))
    return "/".join(parts)


def _long_name(read: ReadAt, shard: str, place: int, kind: bytes, size: int, stop: int) -> str:
    """The name that an extended header gives to the next member; empty when it says nothing of it."""
    limit = LARGEST_NAME if kind == b"L" else LARGEST_PAX
    if size > limit:
        _refuse(f"has an extended header of {size:,} bytes; {limit:,} are the most", shard, place)
    content = read(place, size) if place + padded(size) <= stop else b""
    if len(content) < size:
        _refuse("is cut off inside an extended header", shard, place)
    if kind == b"L":
        return _decoded(content.removesuffix(b"\0"), shard, place)
    name = ""
    for keyword, value in _pax_records(content, shard, place):
        if keyword in (b"size", b"linkpath") or keyword.startswith(b"GNU.sparse"):
            _refuse(f"has an extended header that changes {keyword[:100]!r}", shard, place)
        if keyword == b"path":
            if kind == b"g":
                _refuse("gives all of its members one name", shard, place)
            name = _decoded(value, shard, place)
    return name


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


def _decoded(name: bytes, shard: str, place: int) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        _refuse(f"has the name {name[:100]!r}, which is not UTF-8", shard, place)


def _check_name(name: str, shard: str, place: int) -> None:
    if not name:
        _refuse("has a member without a name", shard, place)
    if "\0" in name:
        _refuse(f"has a member {name[:100]!r}, with a NUL in its name", shard, place)
    if name.startswith("/") or ".." in name.split("/"):
        _refuse(f"has a member {name[:100]!r}, which leads out of the folder", shard, place)


def _refuse(what: str, shard: str, place: int, member: Member | None = None) -> NoReturn:
    subject = "the archive" if member is None else f"member {member.name[:100]!r}"
    raise DataFailed(
        f"{subject} {what}",
        where=f"{shard}, byte {place:,}",
        fix="fetch or pack this shard again; hasten never extracts one, and reads nothing but regular files",
    )
