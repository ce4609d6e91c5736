"""Pictures in shards: the very batches that the files they were packed from give, in the shards' own order."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import hasten
from data.pictures import jpeg, photos, write
from hasten.data.cache.cache_building import open_cache
from hasten.data.loading.batch_readers import Request, reader_of
from hasten.data.shards.shard_writer import PicturesInFolders, pack
from hasten.data.sources.job_data import source_of
from hasten.errors import DataFailed
from support.data.loaders import TWO_WORKERS, content, epoch_of
from support.data.small_shards import packed_folder

VIEW = hasten.RandomResizedCrop(20)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A folder of class folders, and what it was packed into without being shuffled."""
    root = tmp_path_factory.mktemp("photos")
    photos(root / "files", count=18)
    pack(PicturesInFolders(root / "files"), root / "packed", shard_bytes=20_000, seed=None)
    return root / "files", root / "packed"


def batch_of(data, indices):
    found = reader_of(source_of(data, field="train"), seed=3).__getitems__(Request(1, np.array(indices)))
    return [part.tolist() for part in found]


def test_a_packed_folder_gives_the_very_samples_of_its_files(both):
    files, packed = (hasten.ImageFolder(each, VIEW) for each in both)
    assert len(packed) == len(files) == 18
    assert packed.classes == files.classes
    assert batch_of(packed, range(18)) == batch_of(files, range(18))


def test_the_order_is_that_of_the_shards(both):
    packed = hasten.ImageFolder(both[1], VIEW)
    order = source_of(packed, field="train").order(7, True).indices(0, 0, 18)
    labels = [label for one in epoch_of(packed) for label in one.batch[1].tolist()]
    assert labels == [packed.steady.labelled(int(index))[1] for index in order]


def test_a_part_of_it_is_read_in_any_order(both):
    packed = hasten.ImageFolder(both[1], VIEW)
    part = packed.subset([5, 3])
    assert source_of(part, field="train").order is None
    assert batch_of(part, [0, 1])[1] == [packed.steady.labelled(5)[1], packed.steady.labelled(3)[1]]


def test_workers_and_a_cache_give_the_same_batches(both, tmp_path):
    packed = hasten.ImageFolder(both[1], VIEW)
    alone = content(epoch_of(packed))
    assert content(epoch_of(packed, options=TWO_WORKERS)) == alone
    kept = packed.with_steady(open_cache(packed.steady, tmp_path / "cache"))
    assert batch_of(kept, range(18)) == batch_of(packed, range(18))


def test_a_picture_that_is_damaged_is_named_by_shard_and_number(tmp_path):
    write(tmp_path / "files", {"cat/0.jpg": jpeg(9, 9)[:200], "cat/1.jpg": jpeg(9, 9)})
    pack(PicturesInFolders(tmp_path / "files"), tmp_path / "packed", shard_bytes=20_000, seed=None)
    with pytest.raises(DataFailed, match=r"packed, sample 0"):
        hasten.ImageFolder(tmp_path / "packed", VIEW)[0]


def test_shards_without_pictures_are_refused_by_name(tmp_path: Path):
    data = hasten.ImageFolder(packed_folder(tmp_path), VIEW)
    with pytest.raises(DataFailed, match="jpg"):
        data[0]


def test_the_key_of_a_cache_changes_with_the_view(both):
    packed = hasten.ImageFolder(both[1], VIEW)
    again = hasten.ImageFolder(both[1], VIEW)
    other = hasten.ImageFolder(both[1], hasten.RandomResizedCrop(21))
    assert packed.steady.cache_key() == again.steady.cache_key() != other.steady.cache_key()


def test_one_sample_is_for_any_other_loader_too(both):
    torch.manual_seed(1)
    pixels, label = hasten.ImageFolder(both[1], VIEW)[4]
    assert pixels.shape == (3, 20, 20)
    assert 0 <= label < 3


# Files or shards


def both_ways(tmp_path, **more):
    return write(tmp_path, {"cat/0.jpg": jpeg(9, 9), "dog/0.jpg": jpeg(9, 9)} | more)


@pytest.mark.parametrize("index", [b"{}", b'{"schema": 2}', b"no JSON"])
def test_an_index_of_another_program_hides_no_class_folder(tmp_path, index):
    assert hasten.ImageFolder(both_ways(tmp_path, **{"index.json": index}), VIEW).classes == ["cat", "dog"]


def test_tar_files_beside_class_folders_are_refused_by_both_names(both, tmp_path):
    shutil.copy(both[1] / "shard-000000.tar", both_ways(tmp_path) / "train.tar")
    with pytest.raises(DataFailed, match=r"holds the tar file 'train\.tar' and the folder 'cat'") as refusal:
        hasten.ImageFolder(tmp_path, VIEW)
    assert refusal.value.where == str(tmp_path)


def test_a_folder_that_is_named_like_an_archive_is_a_class(tmp_path):
    data = hasten.ImageFolder(both_ways(tmp_path, **{"new.tar/0.jpg": jpeg(9, 9)}), VIEW)
    assert data.classes == ["cat", "dog", "new.tar"]


def test_shards_are_read_without_an_index_and_with_one_beside_other_folders_too(both, tmp_path):
    for path in both[1].glob("*.tar"):
        shutil.copy(path, tmp_path)
    (tmp_path / ".trash").mkdir()
    assert len(hasten.ImageFolder(tmp_path, VIEW)) == 18
    for path in both[1].glob("index.*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "lost+found").mkdir()
    assert len(hasten.ImageFolder(tmp_path, VIEW)) == 18


def test_an_index_whose_shards_are_gone_is_said_to_be_so(both, tmp_path):
    for path in both[1].glob("index.*"):
        shutil.copy(path, tmp_path)
    with pytest.raises(DataFailed, match=r"shard-000000\.tar: cannot be read"):
        hasten.ImageFolder(tmp_path, VIEW)
