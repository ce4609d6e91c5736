"""hasten pack: what it says, what it leaves, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import hasten
from support.cli.commands import ran

DATA = """
import numpy as np

def numbers():
    return [(np.full(3, index), index) for index in range(20)]

def large():
    return [np.full(600_000, index, dtype=np.uint8) for index in range(4)]

def texts():
    return ["a", "b"]

def nothing():
    return None
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with data and pictures, and the present one while the test runs."""
    (tmp_path / "data_of_tests.py").write_text(DATA)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 6)).save(tmp_path / "photos" / name / ("1.jpg" if name == "cat" else "1.png"))
    return tmp_path


def value_of(shown: str, label: str) -> str:
    (found,) = [line.split(None, 1)[1] for line in shown.splitlines() if line.strip().startswith(f"{label} ")]
    return found


def read(expression: str) -> list:
    """The samples of the data set that the command tells to use."""
    return list(eval(expression.removeprefix("train="), {"hasten": hasten}))


def test_pictures_are_packed_and_can_be_used_as_told(here: Path):
    code, shown, _ = ran("pack photos shards")
    assert code == 0
    assert value_of(shown, "use") == 'train=hasten.ImageFolder("shards", hasten.RandomResizedCrop(224))'
    assert sorted(label for _, label in read(value_of(shown, "use"))) == [0, 1]
    assert value_of(shown, "next") == "hasten pack shards --verify"
    assert {path.name for path in here.iterdir()} == {"data_of_tests.py", "photos", "shards"}


def test_a_data_set_is_packed_by_the_name_of_its_function(here: Path):
    code, shown, _ = ran("pack data_of_tests.py:numbers 'my shards'")
    assert code == 0
    found = [(array.tolist(), number) for array, number in read(value_of(shown, "use"))]
    assert sorted(found) == [([index] * 3, index) for index in range(20)]
    assert found != sorted(found)
    assert value_of(shown, "next") == "hasten pack 'my shards' --verify"


def test_the_order_and_the_size_of_shards_can_be_chosen(here: Path):
    for megabytes, shards in [(1, 4), (2, 2), (256, 1)]:
        _, shown, _ = ran(f"pack data_of_tests.py:large large-{megabytes} --shard-size {megabytes}")
        assert f" into {shards} shard" in value_of(shown, "verdict")
    assert ran("pack data_of_tests.py:texts kept --keep-order")[0] == 0
    assert list(hasten.Shards("kept", form=("0.txt",))) == [("a",), ("b",)]


def test_whole_shards_verify_and_damaged_ones_end_with_the_code_of_data(here: Path):
    ran("pack photos shards")
    code, shown, _ = ran("pack shards --verify")
    assert code == 0
    assert value_of(shown, "verdict") == "All 2 samples are as they were packed"
    path = here / "shards" / "shard-000000.tar"
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    code, _, error = ran("pack shards --verify")
    assert code == 11
    assert "1 of 2 files are damaged: shard-000000.tar" in error


@pytest.mark.parametrize(
    ("line", "code", "says", "fix"),
    [
        ("pack photos data_of_tests.py", 2, "data_of_tests.py: it exists and is not empty", "that is empty or new"),
        ("pack photos photos", 2, "photos: it is inside the folder to be packed", "photos-shards"),
        ("pack photos .", 2, ".: it exists and is not empty", "that is empty or new"),
        ("pack photos", 2, "DST is missing", "hasten pack photos a-new-folder"),
        ("pack photos shards --verify", 2, "--verify takes one folder", "hasten pack shards --verify"),
        ("pack photo shards", 2, "photo: there is no such folder", "data.py:train_data"),
        (
            "pack data_of_tests.py:nothing shards",
            2,
            "a NoneType is not a map-style data set",
            "such as a torch Dataset",
        ),
        ("pack photos --verify", 11, "photos/index.json: cannot be read", ""),
    ],
)
def test_a_failure_is_one_block_with_its_exit_code_and_leaves_nothing(
    here: Path, line: str, code: int, says: str, fix: str
):
    ended, _, error = ran(line)
    assert ended == code
    assert says in error
    assert fix in error
    assert not (here / "shards").exists()
    assert not list(here.glob("*.unfinished"))
