"""Samples from shards: the very bytes that were packed, or an error that names the place."""

import io
import json
import multiprocessing
import os
import pickle
import tarfile
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from hasten import Shards
from hasten.data.cache.cached_source import Watcher, kept
from hasten.data.loading.batch_loader import TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.shards import shard_dataset as shards
from hasten.data.shards.shard_index import MANIFEST, ROW, ROWS
from hasten.data.sources.augmented import Augmented, seam_of
from hasten.data.sources.job_data import source_of
from hasten.data.sources.known_steady import steady_reason
from hasten.errors import DataFailed
from support import laptop
from support.data.loaders import HERE, ONE_WORKER, TWO_WORKERS, content, epoch_of, indices, steps
from support.data.small_shards import NUMBERED, Numbered, pack_samples, packed_folder

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


THREADS = LoaderOptions(workers=2, worker_kind="threads")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return packed_folder(tmp_path)


def sent_and_received(data: Shards) -> Shards:
    return ForkingPickler.loads(ForkingPickler.dumps(data))  # as a worker that is spawned gets it


# ---- what is read


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


def test_a_form_makes_tuples_of_the_members_it_names(tmp_path: Path):
    pack_samples(
        [{"jpg": b"\xff\xd8\xff1", "cls": 1}, {"png": b"\x89PNG\r\n\x1a\n2", "cls": 2}], tmp_path / "s", seed=None
    )
    data = Shards(tmp_path / "s", form=("jpg;png", "cls"))
    assert list(data) == [(b"\xff\xd8\xff1", 1), (b"\x89PNG\r\n\x1a\n2", 2)]
    with pytest.raises(DataFailed, match="sample '000001' has no jpg; it has") as caught:
        Shards(tmp_path / "s", form=("jpg", "cls"))[1]
    assert "shard-000000.tar, byte 2,048" in caught.value.where


def test_functions_of_the_users_decode_by_the_whole_extension_or_its_last_part(tmp_path: Path):
    pack_samples([{"left.jpg": b"\xff\xd8\xffl", "right.jpg": b"\xff\xd8\xffr", "cls": 1}], tmp_path / "s")
    data = Shards(tmp_path / "s", decode={"jpg": len, "left.jpg": bytes.hex, "cls": lambda raw: raw})
    assert data[0] == {"__key__": "000000", "left.jpg": "ffd8ff6c", "right.jpg": 4, "cls": b"1"}


def test_an_error_of_the_users_decoder_stays_and_says_where(folder: Path):
    def broken(raw: bytes) -> None:
        raise ZeroDivisionError("theirs")

    with pytest.raises(ZeroDivisionError, match="theirs") as caught:
        Shards(folder, decode={"cls": broken})[0]
    assert "while decoding member '0000" in caught.value.__notes__[0]
    assert "shard-000000.tar, byte" in caught.value.__notes__[0]


def test_classes_are_told_only_where_there_are_some(folder: Path):
    assert Shards(folder).classes is None


def test_shards_from_elsewhere_are_read_without_an_index(tmp_path: Path):
    told: list[tuple[int, int]] = []
    for number in range(3):
        with tarfile.open(tmp_path / f"x-{number}.tar", "w") as file:
            for sample in range(4):
                for extension, text in [("cls", f"{number * 4 + sample}"), ("json", "[1, 2]")]:
                    information = tarfile.TarInfo(f"./some/{'long' * 40}/{sample}.{extension}")
                    information.size = len(text)
                    file.addfile(information, io.BytesIO(text.encode()))
    data = Shards(tmp_path, form=("cls", "json"), progress=lambda done, whole: told.append((done, whole)))
    assert list(data) == [(number, [1, 2]) for number in range(12)]
    whole = sum(path.stat().st_size for path in tmp_path.glob("*.tar"))
    assert told[-1] == (whole, whole)
    assert [sample[0] for sample in Shards([tmp_path / "x-2.tar", tmp_path / "x-0.tar"], form=("cls",))][:5] == [
        *(8, 9, 10, 11),
        0,
    ]
    assert len(Shards(tmp_path / "x-1.tar")) == 4


def test_our_own_shards_are_read_alike_with_and_without_their_index(folder: Path):
    with_index, without = Shards(folder, form=NUMBERED), Shards(sorted(folder.glob("*.tar")), form=NUMBERED)
    assert list(with_index) == list(without)
    assert np.array_equal(
        with_index.sample_order(3, True).indices(1, 0, 30), without.sample_order(3, True).indices(1, 0, 30)
    )


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


def test_many_shards_are_read_with_few_open_files(tmp_path: Path):
    folder = packed_folder(tmp_path, 150, shard_bytes=1)
    assert len(list(folder.glob("*.tar"))) == 150
    data = Shards(folder, form=("cls",))
    before = psutil.Process().num_fds()
    for index in [*range(150), *range(0, 150, 7)]:
        assert data[index][0] == Shards(folder, form=("cls",))[index][0]
    assert psutil.Process().num_fds() - before <= shards.MOST_OPEN


@pytest.mark.parametrize("indexed", [True, False])
def test_a_worker_that_is_started_anew_reads_the_same(folder: Path, indexed: bool):
    data = Shards(folder if indexed else sorted(folder.glob("*.tar")), form=NUMBERED)
    data[0]
    assert list(sent_and_received(data)) == list(data)
    if indexed:
        assert len(pickle.dumps(data)) < 1500  # the folder, and not the index


def test_threads_and_forked_processes_share_a_data_set(folder: Path):
    data = Shards(folder, form=NUMBERED)
    expected = list(data)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(data.__getitem__, range(30)) == expected


# ---- the loader


@pytest.mark.trap(40)
@pytest.mark.parametrize(
    "options", [HERE, ONE_WORKER, TWO_WORKERS, THREADS], ids=lambda one: f"{one.workers} {one.worker_kind}"
)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_each_sample_comes_once_an_epoch_and_global_batches_stay(folder: Path, options: LoaderOptions, world_size: int):
    data = Shards(folder, form=NUMBERED, buffer=8)
    alone = steps(epoch_of(data, 1))
    assert sorted(index for batch in alone for index in batch) == list(range(30))
    ranks = [steps(epoch_of(data, 1, options=options, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert [[index for share in shares for index in share] for shares in zip(*ranks, strict=True)] == alone


@pytest.mark.trap(36)
@pytest.mark.parametrize("options", [HERE, TWO_WORKERS, THREADS], ids=lambda one: f"{one.workers} {one.worker_kind}")
def test_an_epoch_goes_on_at_any_step_with_the_same_batches(folder: Path, options: LoaderOptions):
    data = Shards(folder, form=("cls",), buffer=8)
    whole = content(epoch_of(data, 3, options=options))
    for step in range(len(whole) + 1):
        assert content(epoch_of(data, 3, step, options=HERE)) == whole[step:]


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


def test_a_cache_of_shards_keeps_their_order_and_changes_with_them(folder: Path, tmp_path: Path):
    data = Shards(folder, form=("cls",), buffer=8)
    cached = LoaderOptions(cache=tmp_path / "cache")
    source = kept(source_of(data, field="train"), cached, torch.device("cpu"), laptop(), Watcher(print, print))
    assert type(source.dataset) is not Shards
    loader = TrainLoader(source, batch_size=4, options=cached, seed=7)
    assert content(loader.epoch(2)) == content(epoch_of(data, 2))
    key = data.cache_key()
    assert key == Shards(folder, form=("cls",)).cache_key()
    assert key != Shards(folder).cache_key()
    assert key != Shards(folder, form=("cls",), decode={"cls": int}).cache_key()
    os.utime(folder / "shard-000000.tar", ns=(1, 1))
    assert key != Shards(folder, form=("cls",)).cache_key()


def test_what_is_augmented_keeps_the_order_of_its_shards(folder: Path):
    data = Shards(folder, form=("cls",), buffer=8)
    assert indices(epoch_of(Augmented(data, tuple), 2)) == indices(epoch_of(data, 2))


@pytest.mark.trap(41)
def test_what_functions_of_the_users_decode_is_not_taken_for_steady(folder: Path):
    data = Shards(folder, decode={"cls": int})
    assert seam_of(data) is None
    assert seam_of(Augmented(data, dict)).steady is data
    assert steady_reason(data) is None
    assert steady_reason(Shards(folder)) is not None


# ---- size


def test_fifty_million_samples_are_opened_without_reading_their_index(tmp_path: Path):
    count, shard_count = 50_000_000, 5000
    (tmp_path / ROWS).touch()
    os.truncate(tmp_path / ROWS, count * ROW.itemsize)  # a file of nothing but holes
    tables = [
        {"name": f"shard-{number:06}.tar", "bytes": 1 << 30, "sha256": "0" * 64, "samples": count // shard_count}
        for number in range(shard_count)
    ]
    for table in tables:
        (tmp_path / table["name"]).touch()
        os.truncate(tmp_path / table["name"], 1 << 30)
    index = {"bytes": count * ROW.itemsize, "sha256": "0" * 64}
    manifest = {"schema": 1, "samples": count, "classes": None, "shards": tables, "index": index}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    before = psutil.Process().memory_info().rss
    data = Shards(tmp_path)
    order = data.sample_order(0, True)
    found = np.concatenate([order.indices(0, start, start + 256) for start in (0, 25_000_000, count - 256)])
    assert len(set(found.tolist())) == 768
    assert psutil.Process().memory_info().rss - before < 50 << 20
    assert len(data) == count


def test_a_file_that_another_thread_puts_in_its_place_is_read_to_the_end(tmp_path: Path, monkeypatch):
    data = Shards(packed_folder(tmp_path), form=("cls",))
    wanted, read = data[0], os.pread

    def after_others(descriptor, size, offset):
        data._open[:] = [None] * len(data._open)  # as when many other shards are read meanwhile
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", after_others)
    assert data[0] == wanted
