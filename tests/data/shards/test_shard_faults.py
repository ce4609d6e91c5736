"""Shards that are damaged or hostile: our error, which names the place, or the right sample; never harm."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hasten import Shards
from hasten.data.shards.shard_index import MANIFEST, ROW, ROWS, open_index
from hasten.data.shards.shard_members import encoded
from hasten.data.shards.tar_reader import END, packed
from hasten.errors import DataFailed
from support.data.small_shards import packed_folder


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


def test_any_altered_byte_of_a_sample_is_found_and_the_sample_named(folder: Path):
    path = folder / "shard-000000.tar"
    whole, length = path.read_bytes(), int(np.fromfile(folder / ROWS, dtype=ROW)["length"][0])
    for place in range(0, length, 97):
        alter(path, place)
        with pytest.raises(DataFailed, match="sample 0 is damaged: it differs from what was packed") as caught:
            Shards(folder)[0]
        assert caught.value.where == f"{path}, bytes 0 to {length:,}"
        Shards(folder)[1]
        path.write_bytes(whole)


def test_a_shard_that_was_cut_off_or_removed_is_found_when_it_is_opened_and_later(folder: Path):
    path = folder / "shard-000001.tar"
    size, data = path.stat().st_size, Shards(folder)
    in_second = int(open_index(folder).rows["shard"].tolist().index(2)) - 1  # the last one there
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
        ({"shard": 99}, "of shard number 99, where no sample can be"),
        ({"offset": (1 << 64) - 512}, "where no sample can be"),
        ({"length": 0}, "where no sample can be"),
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
        (lambda manifest: manifest.update(samples=31), "does not match the 31 samples"),
        (_one_more, "does not match the 31 samples"),
        (_drop, "does not match the 30 samples"),
        (lambda manifest: manifest["shards"][0].update(name="../x.tar"), "shards.0.name: String should match"),
        (lambda manifest: manifest["shards"][0].update(bytes=512), "and 512 when it was packed"),
        (lambda manifest: manifest["index"].update(bytes=24), "does not match the 30 samples"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused_when_it_is_opened(folder: Path, change: object, why: str):
    alter_manifest(folder, change)
    with pytest.raises(DataFailed, match=why):
        Shards(folder)


@contextmanager
def in_words(place: str) -> Iterator[None]:
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


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    with in_words("altered.tar"):
        for sample in Shards(path):
            assert "__key__" in sample
