"""Tar archives: read as everybody reads them, and hostile ones refused without harm."""

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.shards import tar_reader as tar
from hasten.data.shards.tar_reader import BLOCK, END, Member, members_of_archive, packed, samples
from hasten.errors import DataFailed


def archive(*files: tuple[str, bytes], form: int = tarfile.PAX_FORMAT, **fields: object) -> bytes:
    """An archive as Python's tarfile writes it; fields are set on every member."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=form) as file:
        for name, content in files:
            information = tarfile.TarInfo(name)
            information.size = len(content)
            for field, value in fields.items():
                setattr(information, field, value)
            file.addfile(information, io.BytesIO(content))
    return written.getvalue()


def reader(content: bytes):
    return lambda offset, size: content[offset : offset + size]


def found(content: bytes) -> list[Member]:
    return list(members_of_archive(reader(content), "a.tar", len(content)))


def contents(content: bytes) -> list[tuple[str, bytes]]:
    return [(one.name, content[one.offset : one.offset + one.size]) for one in found(content)]


def checked(header: bytes) -> bytes:
    """The header with the checksum that it should have."""
    blank = header[:148] + b" " * 8 + header[156:BLOCK]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:] + header[BLOCK:]


def altered(place: int, value: bytes, name: str = "a.jpg", content: bytes = b"x") -> bytes:
    """A whole archive of one member, some bytes of its header replaced, the checksum right."""
    good = packed(name, content)
    return checked(good[:place] + value + good[place + len(value) :]) + END


def refused(content: bytes, why: str) -> DataFailed:
    with pytest.raises(DataFailed, match=why) as caught:
        found(content)
    assert caught.value.where.startswith("a.tar, byte ")
    assert caught.value.fix
    return caught.value


@given(content=st.binary(max_size=1100))
def test_what_is_packed_is_read_by_tarfile(content):
    whole = packed("0001.jpg", content) + END
    with tarfile.open(fileobj=io.BytesIO(whole)) as file:
        (information,) = file.getmembers()
        assert file.extractfile(information).read() == content
    assert (information.mtime, information.uid, information.gid, information.uname) == (0, 0, 0, "")
    assert contents(whole) == [("0001.jpg", content)]


@pytest.mark.parametrize(
    ("name", "key", "extension"),
    [
        ("a.jpg", "a", "jpg"),
        ("x.y/a.seg.PNG", "x.y/a", "seg.png"),
        ("./a.jpg", "./a", "jpg"),
        ("a", "", ""),
        (".hidden", "", ""),
        ("__notes__/a.jpg", "", ""),
    ],
)
def test_key_and_extension_meet_at_the_first_dot_of_the_last_part(name, key, extension):
    (member,) = found(packed(name, b"x") + END)
    assert (member.key, member.extension) == (key, extension)


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"6", b"S", b"K", b"Z"])
def test_what_is_no_regular_file_is_refused_by_its_type(kind):
    assert f"its type is {kind!r}" in refused(altered(156, kind), "member 'a.jpg' is not a regular file").what


@pytest.mark.parametrize("name", ["/etc/passwd.txt", "x/../a.jpg"])
def test_names_that_lead_out_of_the_folder_are_refused(name):
    refused(altered(0, name.encode() + bytes(50)), "leads out of the folder")
    refused(archive((name + "é" * 60, b"")), "leads out of the folder")


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    header = packed("pax", records)
    return checked(header[:156] + kind + header[157:])


def record(keyword: bytes, value: bytes) -> bytes:
    length = len(keyword) + len(value) + 3
    length += len(str(length + len(str(length))))
    return b"%d %s=%s\n" % (length, keyword, value)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (b"-0000000001\0", "the size -1"),
        (b"\xff" * 12, "the size -1"),
        (b"99999999999\0", "cannot be read"),
        (b"00000010000\0", "the archive ends before"),
        (b"77777777777\0", "1,073,741,824 are the most"),
        (b"\x80" + b"\xff" * 11, "1,073,741,824 are the most"),
    ],
)
def test_sizes_are_believed_only_within_the_archive_and_the_limit(field, why):
    refused(altered(124, field), why)


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (b"12 path=a\n", "cannot be read"),
        (b"99999999999999999999 path=a\n", "cannot be read"),
        (b"7 path\n", "cannot be read"),
        (b"9 path=ab", "cannot be read"),
        (record(b"size", b"1"), "changes b'size'"),
        (record(b"GNU.sparse.map", b"1"), "changes b'GNU.sparse.map'"),
    ],
)
def test_extended_headers_that_lie_are_refused(records, why):
    refused(pax(records) + packed("a.jpg", b"x") + END, why)


def test_an_archive_that_was_cut_off_anywhere_is_refused():
    whole = archive(("a.jpg", b"1" * 600), ("long" * 30 + ".jpg", b"2"), form=tarfile.GNU_FORMAT)
    end = found(whole)[-1].end + len(END)
    for length in range(0, end, 64):
        refused(whole[:length], "cut off|truncated header|ends before")
    assert len(contents(whole[:end])) == 2


def test_a_sample_has_each_extension_once_and_not_too_many():
    twice = packed("a.jpg", b"1") + packed("a.JPG", b"2") + END
    with pytest.raises(DataFailed, match=r"member 'a.JPG' is the second 'jpg' of its sample"):
        list(samples(iter(found(twice)), "a.tar"))
    own_key = packed("a.jpg", b"1") + packed("a.__key__", b"2") + END
    with pytest.raises(DataFailed, match=r"member 'a.__key__' has the extension __key__"):
        list(samples(iter(found(own_key)), "a.tar"))
    many = b"".join(packed(f"a.{number}", b"") for number in range(tar.MOST_MEMBERS + 1)) + END
    with pytest.raises(DataFailed, match=r"member 'a.64' is one too many"):
        list(samples(iter(found(many)), "a.tar"))
