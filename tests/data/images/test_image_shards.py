"""Pictures in shards: the very batches that the files they were packed from give, in the shards' own order."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import hasten
from hasten.data.cache.cache_building import open_cache
from hasten.data.loading.batch_readers import Request, reader_of
from hasten.data.shards.shard_writer import ImagesInFolders, pack
from hasten.data.sources.job_data import source_of
from support.data.image_cases import jpeg, photos, write
from support.data.loaders import TWO_WORKERS, content, epoch_of

VIEW = hasten.RandomResizedCrop(20)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A folder of class folders, and what it was packed into without being shuffled."""
    root = tmp_path_factory.mktemp("photos")
    photos(root / "files", count=18)
    pack(ImagesInFolders(root / "files"), root / "packed", shard_bytes=20_000, seed=None)
    return root / "files", root / "packed"


def batch_of(data, indices):
    found = reader_of(source_of(data, field="train"), seed=3).__getitems__(Request(1, np.array(indices)))
    return [part.tolist() for part in found]


def test_a_packed_folder_gives_the_very_samples_of_its_files(both):
    files, packed = (hasten.ImageFolder(each, VIEW) for each in both)
    assert len(packed) == len(files) == 18
    assert packed.classes == files.classes
    assert batch_of(packed, range(18)) == batch_of(files, range(18))


def test_workers_and_a_cache_give_the_same_batches(both, tmp_path):
    packed = hasten.ImageFolder(both[1], VIEW)
    alone = content(epoch_of(packed))
    assert content(epoch_of(packed, options=TWO_WORKERS)) == alone
    kept = packed.with_steady(open_cache(packed.steady, tmp_path / "cache"))
    assert batch_of(kept, range(18)) == batch_of(packed, range(18))


def both_ways(tmp_path, **more):
    return write(tmp_path, {"cat/0.jpg": jpeg(9, 9), "dog/0.jpg": jpeg(9, 9)} | more)


def test_of_class_folders_beside_tar_files_without_an_index_the_folders_are_read(both, tmp_path):
    shutil.copy(both[1] / "shard-000000.tar", both_ways(tmp_path) / "train.tar")
    assert len(hasten.ImageFolder(tmp_path, VIEW)) == 2


def test_shards_are_read_without_an_index_and_with_one_beside_other_folders_too(both, tmp_path):
    for path in both[1].glob("*.tar"):
        shutil.copy(path, tmp_path)
    (tmp_path / ".trash").mkdir()
    assert len(hasten.ImageFolder(tmp_path, VIEW)) == 18
    for path in both[1].glob("index.*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "lost+found").mkdir()
    assert len(hasten.ImageFolder(tmp_path, VIEW)) == 18
