"""Samples from shards: the very bytes that were packed, or an error that names the place."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from hasten import Shards
from hasten.data.sources.augmented import Augmented, seam_of, steady_reason
from support.data.loaders import content, epoch_of, indices
from support.data.small_shards import NUMBERED, Numbered, packed_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return packed_folder(tmp_path)


def test_every_sample_comes_back_as_it_was(folder: Path):
    data, original = Shards(folder), Numbered(30)
    assert len(data) == 30
    assert len(list(folder.glob("*.tar"))) > 2
    seen = set()
    for sample in data:
        number = sample["cls"]
        expected = original[number]
        assert sample["__key__"] == f"{number:06}"
        assert set(sample) == {"__key__", "array.npy", "cls", "text.txt"}
        assert np.array_equal(sample["array.npy"], expected["array"])
        assert sample["array.npy"].dtype == np.int16
        assert sample["text.txt"] == expected["text"]
        seen.add(number)
    assert seen == set(range(30))
    assert data[-1]["cls"] == data[29]["cls"]
    with pytest.raises(IndexError):
        data[30]


def test_shards_from_elsewhere_are_read_without_an_index(tmp_path: Path):
    for number in range(3):
        with tarfile.open(tmp_path / f"x-{number}.tar", "w") as file:
            for sample in range(4):
                for extension, text in [("cls", f"{number * 4 + sample}"), ("json", "[1, 2]")]:
                    information = tarfile.TarInfo(f"./some/{'long' * 40}/{sample}.{extension}")
                    information.size = len(text)
                    file.addfile(information, io.BytesIO(text.encode()))
    data = Shards(tmp_path, form=("cls", "json"))
    assert list(data) == [(number, [1, 2]) for number in range(12)]
    assert [sample[0] for sample in Shards([tmp_path / "x-2.tar", tmp_path / "x-0.tar"], form=("cls",))][:5] == [
        *(8, 9, 10, 11),
        0,
    ]
    assert len(Shards(tmp_path / "x-1.tar")) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves its files open
def test_webdataset_reads_the_same_samples(folder: Path):
    webdataset = pytest.importorskip("webdataset")
    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    theirs = list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False).decode())
    ours = list(Shards(folder))
    assert len(theirs) == len(ours) == 30
    for their, our in zip(theirs, ours, strict=True):
        assert {name for name in their if name not in ("__url__", "__local_path__")} == set(our)
        assert np.array_equal(their["array.npy"], our["array.npy"])
        assert [their[name] for name in ("__key__", *NUMBERED)] == [our[name] for name in ("__key__", *NUMBERED)]


@pytest.mark.trap(36)
def test_an_epoch_goes_on_at_any_step_with_the_same_batches(folder: Path):
    data = Shards(folder, form=("cls",), buffer=8)
    whole = content(epoch_of(data, 3))
    for step in range(len(whole) + 1):
        assert content(epoch_of(data, 3, step)) == whole[step:]


@pytest.mark.trap(39)
def test_the_loader_shuffles_within_the_buffer_and_not_at_all_when_told(folder: Path):
    data, packed_as = Shards(folder, form=NUMBERED, buffer=8), [number for number, _ in Shards(folder, form=NUMBERED)]
    assert indices(epoch_of(data, shuffle=False)) == packed_as
    orders = [[packed_as.index(number) for number in indices(epoch_of(data, epoch))] for epoch in range(2)]
    assert orders[0] != orders[1]
    for order in orders:
        assert order == data.sample_order(7, True).indices(orders.index(order), 0, 30).tolist()
        for start in range(0, 24, 8):  # of one shard, or of two that follow each other
            assert sum(abs(np.diff(sorted(order[start : start + 8]))) > 1) <= 2


@pytest.mark.trap(41)
def test_what_functions_of_the_users_decode_is_not_taken_for_steady(folder: Path):
    data = Shards(folder, decode={"cls": int})
    assert seam_of(data) is None
    assert seam_of(Augmented(data, dict)).steady is data
    assert steady_reason(data) is None
    assert steady_reason(Shards(folder)) is not None
