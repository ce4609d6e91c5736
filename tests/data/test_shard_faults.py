"""Shards that are damaged or hostile: our error, which names the place, or the right sample; never harm."""

import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hasten import Shards
from hasten.data.shards import shard_index
from hasten.data.shards.shard_index import MANIFEST, ROW, ROWS
from hasten.data.shards.shard_members import encoded
from hasten.data.shards.tar_reader import END, packed
from hasten.errors import DataFailed
from support.data.small_shards import NUMBERED, packed_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return packed_folder(tmp_path)


def alter(path: Path, place: int, change: int = 0xFF) -> None:
    """Change the bits `change` of one byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= change
    path.write_bytes(content)


def alter_row(folder: Path, sample: int, **fields: int) -> None:
    rows = np.fromfile(folder / ROWS, dtype=ROW)
    for name, value in fields.items():
        rows[name][sample] = value
    rows.tofile(folder / ROWS)


def alter_manifest(folder: Path, change: object) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)  # type: ignore[operator]
    (folder / MANIFEST).write_text(json.dumps(manifest))


# ---- damage


def test_any_altered_byte_of_a_sample_is_found_and_the_sample_named(folder: Path):
    path = folder / "shard-000000.tar"
    whole, length = path.read_bytes(), int(np.fromfile(folder / ROWS, dtype=ROW)["length"][0])
    for place in range(0, length, 97):
        alter(path, place)
        with pytest.raises(DataFailed, match="sample 0 is damaged: it is not what was packed") as caught:
            Shards(folder)[0]
        assert caught.value.where == f"{path}, bytes 0 to {length:,}"
        Shards(folder)[1]
        path.write_bytes(whole)


def test_a_shard_that_was_cut_off_or_removed_is_found_when_it_is_opened_and_later(folder: Path):
    path = folder / "shard-000001.tar"
    size, data = path.stat().st_size, Shards(folder)
    in_second = int(data.sample_order(0, False).indices(0, 0, 30)[-1])
    while data._index.rows["shard"][in_second] != 1:
        in_second -= 1
    os.truncate(path, size - 2048)
    with pytest.raises(DataFailed, match=f"has {size - 2048:,} bytes, and {size:,} when it was packed"):
        Shards(folder)
    with pytest.raises(DataFailed, match="was cut off") as caught:
        data[in_second]
    assert str(path) in caught.value.where
    path.unlink()
    with pytest.raises(DataFailed, match="cannot be read: No such file"):
        Shards(folder)
    with pytest.raises(DataFailed, match="cannot be read: No such file"):
        ForkingPickler.loads(ForkingPickler.dumps(data))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"shard": 99}, "should lie in shard number 99, and there are"),
        ({"offset": 1}, "where no sample can lie"),
        ({"offset": 1 << 40}, "where no sample can lie"),
        ({"offset": (1 << 64) - 512}, "where no sample can lie"),
        ({"length": 0}, "where no sample can lie"),
        ({"length": 1 << 63}, "where no sample can lie"),
        ({"offset": 512}, "is damaged"),
        ({"crc32": 1}, "is damaged"),
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(folder: Path, fields: dict[str, int], why: str):
    alter_row(folder, 3, **fields)
    data = Shards(folder)
    with pytest.raises(DataFailed, match=why):
        data[3]
    data[4]


def test_a_row_over_two_samples_or_none_is_refused(tmp_path: Path):
    folder = packed_folder(tmp_path, 4, shard_bytes=1 << 20)
    data = Shards(folder)
    both = int(data._index.rows["length"][:2].sum())
    data._index = shard_index.scanned([folder / "shard-000000.tar"])  # without checksums
    rows = data._index.rows.copy()
    rows["length"][0] = both
    object.__setattr__(data._index, "rows", rows)
    with pytest.raises(DataFailed, match="there are 2 samples"):
        data[0]


def test_a_large_sample_is_refused_before_memory_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shard_index, "LARGEST_SAMPLE", 1024)
    with pytest.raises(DataFailed, match=r"1,024 are the most"):
        Shards(folder)[0]
    with pytest.raises(DataFailed, match=r"1,024 are the most"):
        Shards(sorted(folder.glob("*.tar")))


def _drop(manifest: dict) -> None:
    del manifest["shards"][0]


def _one_more(manifest: dict) -> None:
    manifest["samples"] += 1
    manifest["shards"][0]["samples"] += 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda manifest: manifest.update(schema=2), "schema: Input should be 1"),
        (lambda manifest: manifest.update(extra=1), "extra: Extra inputs are not permitted"),
        (lambda manifest: manifest.pop("samples"), "samples: Field required"),
        (lambda manifest: manifest.update(samples="30"), "samples: Input should be a valid integer"),
        (lambda manifest: manifest.update(samples=31), "says 31 samples, and its shards hold another number"),
        (_one_more, "are in the manifest, for 31 samples"),
        (_drop, "its shards hold another number"),
        (lambda manifest: manifest["shards"][0].update(name="../x.tar"), "shards.0.name: String should match"),
        (lambda manifest: manifest["shards"][0].update(name="a/x.tar"), "shards.0.name: String should match"),
        (lambda manifest: manifest["shards"][0].update(name="x.tar\n"), "shards.0.name: String should match"),
        (lambda manifest: manifest["shards"][1].update(name=manifest["shards"][0]["name"]), "names a shard twice"),
        (lambda manifest: manifest["shards"][0].update(bytes=-1), "shards.0.bytes: Input should be greater"),
        (lambda manifest: manifest["shards"][0].update(bytes=512), "and 512 when it was packed"),
        (lambda manifest: manifest["index"].update(bytes=24), "bytes, and 24 are in the manifest"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused_when_it_is_opened(folder: Path, change: object, why: str):
    alter_manifest(folder, change)
    with pytest.raises(DataFailed, match=why):
        Shards(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff", b"null", b'{"schema": NaN}'])
def test_a_manifest_that_is_no_json_is_refused(folder: Path, text: bytes):
    (folder / MANIFEST).write_bytes(text)
    with pytest.raises(DataFailed, match="is no index of shards"):
        Shards(folder)


def test_a_manifest_that_is_too_long_is_refused_unread(folder: Path):
    os.truncate(folder / MANIFEST, shard_index.LARGEST_MANIFEST + 1)
    with pytest.raises(DataFailed, match="is longer than"):
        Shards(folder)


def test_what_holds_no_shards_is_refused(tmp_path: Path, folder: Path):
    with pytest.raises(DataFailed, match="there is no such file or folder"):
        Shards(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataFailed, match=r"holds no \.tar file"):
        Shards(tmp_path / "empty")
    with pytest.raises(DataFailed, match="the list of shards is empty"):
        Shards([])
    with pytest.raises(DataFailed, match="No such file"):
        Shards([tmp_path / "nothing.tar"])
    with pytest.raises(ValueError, match="buffer is 0"):
        Shards(folder, buffer=0)
    (folder / MANIFEST).unlink()
    with pytest.raises(DataFailed, match="it was not copied whole"):
        Shards(folder)


# ---- hostile content


def one_sample(folder: Path, *files: tuple[str, bytes]) -> Shards:
    path = folder / "hostile.tar"
    path.write_bytes(b"".join(packed(name, content) for name, content in files) + END)
    return Shards(path)


@pytest.mark.parametrize("extension", ["pyd", "pickle", "pkl", "pth", "pt", "x.pyd"])
def test_a_pickle_is_refused_with_the_reason(tmp_path: Path, extension: str):
    class Harm:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harmed"),))

    data = one_sample(tmp_path, (f"a.{extension}", pickle.dumps(Harm())), ("a.cls", b"1"))
    with pytest.raises(DataFailed, match="it is a pickle, which would run whatever it says") as caught:
        data[0]
    assert "hostile.tar, byte 512" in caught.value.where
    assert Shards(tmp_path / "hostile.tar", form=("cls",))[0] == (1,)
    assert not (tmp_path / "harmed").exists()


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header.encode() + content


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"x"), "Python objects"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (10**14,)}"), "cannot be decoded"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000000,)}"), "0 bytes follow"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", b"12345678"), "bytes follow"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1)}", b"12345678"), "bytes follow"),
        (npy("{'descr': '|S0', 'fortran_order': False, 'shape': (99999999999,)}"), "bytes follow"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "(" * 5000), "header"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}", b"12345678"), "bytes follow"),
        (npy("{" * 200), "header"),
        (npy("__import__('os').mkdir('harmed')"), "cannot be decoded"),
        (b"\x93NUMPY\x03\x00" + bytes(100), "version"),
        (b"\x93NUMPY\x01", "cannot be decoded"),
        (b"", "cannot be decoded"),
    ],
)
def test_a_hostile_array_is_refused_without_taking_memory(tmp_path: Path, content: bytes, why: str):
    data = one_sample(tmp_path, ("a.npy", content))
    with pytest.raises(DataFailed, match=why) as caught:
        data[0]
    assert "member 'a.npy'" in caught.value.what


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.cls", b"seven"),
        ("a.cls", b"9" * 5000),
        ("a.cls", b"7_0"),
        ("a.cls", "٣".encode()),
        ("a.cls", b""),
        ("a.json", b"{"),
        ("a.json", b"[" * 200_000),
        ("a.json", b" " * (1 << 24) + b"1"),
        ("a.txt", b"\xff"),
        ("a.txt", b"x" * ((1 << 24) + 1)),
    ],
)
def test_text_that_is_not_what_it_says_is_refused(tmp_path: Path, name: str, content: bytes):
    data = one_sample(tmp_path, (name, content))
    with pytest.raises(DataFailed, match=f"member '{name}' cannot be decoded"):
        data[0]


@contextmanager
def told_of(place: str) -> Iterator[None]:
    """Nothing is raised inside, or our error, which names the place."""
    error = None
    try:
        yield
    except DataFailed as raised:
        error = raised
    assert error is None or place in error.where


CONTENTS = st.binary(max_size=300) | st.sampled_from(
    [*encoded({"a": np.arange(6).reshape(2, 3), "b": [1, {"c": None}], "c": 3, "d": "text"}).values()]
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of NumPy, about a header that Python 2 could have written
@given(
    members=st.dictionaries(st.sampled_from(["npy", "cls", "json", "txt", "jpg", "pyd"]), CONTENTS, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 255)), max_size=3),
)
def test_altered_shards_give_samples_or_our_error(tmp_path: Path, members: dict[str, bytes], changes: list):
    path = tmp_path / "altered.tar"
    content = bytearray(b"".join(packed(f"a.{extension}", member) for extension, member in members.items()) + END)
    for place, change in changes:
        content[place % len(content)] ^= change
    path.write_bytes(content)
    with told_of("altered.tar"):
        for sample in Shards(path):
            assert "__key__" in sample


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), min_size=1, max_size=3), which=st.data()
)
def test_an_altered_folder_gives_the_right_samples_or_our_error(tmp_path: Path, changes: list, which: st.DataObject):
    if not (tmp_path / "shards").exists():
        packed_folder(tmp_path, 12)
    folder = tmp_path / "shards"
    path = which.draw(st.sampled_from(sorted(folder.iterdir())))
    whole = path.read_bytes()
    content = bytearray(whole)
    for place, change in changes:
        content[place % len(content)] ^= change
    path.write_bytes(content)
    with told_of("shards"):
        for number, text in Shards(folder, form=NUMBERED):
            assert text == "x" * (number % 700)
    path.write_bytes(whole)
