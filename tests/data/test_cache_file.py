"""A cache is whole or it is not a cache, and it never gives a wrong sample."""

from __future__ import annotations

import errno
import json
import os
import pickle
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hasten.checkpoint import files
from hasten.data.cache import cache_file
from hasten.data.cache.cache_file import DATA, INDEX, MANIFEST, Cached, Damaged, Different
from hasten.data.cache.sample_format import ALIGNMENT
from hasten.errors import DataFailed, StorageFailed
from support.checkpoint import file_faults
from support.data.cache_files import BAD, change, ragged, row, written
from support.data.cached_samples import FORMS, same

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def as_read(samples: list) -> list:
    return samples


@given(form=FORMS, count=st.integers(1, 9))
def test_every_sample_comes_back_bit_for_bit_from_either_end(tmp_path_factory, form, count):
    cached = Cached(written(tmp_path_factory.mktemp("cache"), [form(seed) for seed in range(count)]))
    assert len(cached) == count
    for index in range(count):
        assert same(cached[index], form(index))
        assert same(cached[index - count], form(index))


@pytest.mark.trap(40)
@pytest.mark.parametrize(("workers", "start"), [(0, None), (1, "fork"), (2, "fork"), (1, "spawn"), (2, "forkserver")])
def test_workers_of_every_kind_read_the_same_samples(tmp_path, workers, start):
    cached = Cached(written(tmp_path / "c", [ragged(number) for number in range(9)]))
    loader = DataLoader(cached, 2, num_workers=workers, multiprocessing_context=start, collate_fn=as_read)
    assert same([sample for batch in loader for sample in batch], [ragged(number) for number in range(9)])


@pytest.mark.trap(41)
def test_to_change_a_sample_in_place_never_reaches_the_file(tmp_path):
    cached = Cached(written(tmp_path / "c", [ragged(3)]))
    numbers, rest = cached[0]
    numbers.zero_()
    rest["picture"][:] = 0
    assert same(cached[0], ragged(3))


@pytest.mark.trap(41)
def test_a_view_lies_in_the_file_and_refuses_to_be_changed(tmp_path):
    cached = Cached(written(tmp_path / "c", [ragged(5)]))
    numbers, rest = cached.view(0)
    assert np.shares_memory(numbers, cached._data)
    for view in (numbers, rest["picture"]):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 0


@pytest.mark.trap(41)
def test_who_takes_the_mark_away_writes_to_memory_of_this_process_alone(tmp_path):
    """As torch is given a picture, or columns, without a copy."""
    cached = Cached(written(tmp_path / "c", [ragged(5)]))
    before, (numbers, _) = (cached.folder / DATA).read_bytes(), cached.view(0)
    numbers.flags.writeable = True
    numbers[0] = 77
    assert cached.view(0)[0][0] == 77
    assert (cached.folder / DATA).read_bytes() == before
    assert same(Cached(cached.folder)[0], ragged(5))


def test_a_reader_is_sent_as_its_path(tmp_path):
    samples = [torch.full((50_000,), number) for number in range(3)]
    cached = Cached(written(tmp_path / "c", samples))
    sent = pickle.dumps(cached)
    assert len(sent) < 1000
    assert same([*map(pickle.loads(sent).__getitem__, range(3))], samples)  # noqa: S301  our own bytes


@pytest.mark.parametrize("index", [3, -4, 10**9])
def test_a_sample_beyond_the_end_is_an_index_error(tmp_path, index):
    cached = Cached(written(tmp_path / "c", [1, 2, 3]))
    with pytest.raises(IndexError, match="of a cache with 3 samples"):
        cached[index]


def test_a_sample_of_another_form_is_refused(tmp_path):
    with pytest.raises(Different, match="it is str, and was int"):
        written(tmp_path / "c", [1, "a"])


# Samples that could not be read


@pytest.mark.parametrize("at", [(0,), (0, 1), (1,), (2,), (0, 2), (0, 1, 2)])
def test_what_could_not_be_read_raises_the_same_words_and_all_others_are_themselves(tmp_path, at):
    samples: list = [ragged(number) for number in range(3)]
    for index in at:
        samples[index] = DataFailed(f"number {index} is no picture", where=f"{index}.jpg", fix="take it out")
    cached = Cached(written(tmp_path / "c", samples))
    assert (len(cached), cached.bad) == (3, len(at))
    for _ in range(2):  # also when it was checked already
        assert read_all(cached, samples) == 0
        for index in at:
            for read in (cached.__getitem__, cached.view):
                with pytest.raises(DataFailed, match=rf"^{index}.jpg: number {index} is no picture\n  → take it out$"):
                    read(index)


def test_what_follows_one_that_could_not_be_read_is_aligned(tmp_path):
    cached = Cached(written(tmp_path / "c", [BAD, ragged(1), BAD, ragged(2)]))
    assert [cached.view(index)[0].ctypes.data % ALIGNMENT for index in (1, 3)] == [0, 0]


def test_a_file_larger_than_memory_is_mapped(tmp_path):
    cached = Cached(written(tmp_path / "c", [row(0)]))
    size = 4 * psutil.virtual_memory().total
    try:
        os.truncate(cached.folder / DATA, size)
    except OSError:
        pytest.skip("this file system holds no file of that size, not even an empty one")
    assert cached._mapped(DATA, np.uint8, size)[-1] == 0


@pytest.mark.parametrize("reason", [errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_a_lack_of_memory_or_files_does_not_make_a_cache_a_damaged_one(tmp_path, monkeypatch, reason):
    folder = written(tmp_path / "c", [row(0)])

    def scarce(*arguments, **named):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr("hasten.data.cache.cache_file.mmap.mmap", scarce)
    with pytest.raises(StorageFailed, match="cannot be mapped"):
        Cached(folder)


# Damage


def read_all(cached: Cached, samples: list) -> int:
    """Every sample is as it was, or refused; how many were refused."""
    refused = list[str]()
    for index, sample in enumerate(samples):
        wanted = sample.args if isinstance(sample, DataFailed) else sample
        try:
            found = cached[index]
        except StorageFailed as error:
            refused.append(error.where)
            continue
        except DataFailed as error:
            found = error.args
        assert same(found, wanted)
    assert refused == [str(cached.folder)] * len(refused)
    return len(refused)


@settings(max_examples=300)
@given(name=st.sampled_from([DATA, INDEX, MANIFEST]), position=st.integers(0, 10**6), bad=st.booleans())
def test_a_flipped_bit_anywhere_never_gives_another_sample(tmp_path_factory, name, position, bad):
    samples = [BAD, ragged(1), BAD, ragged(3)] if bad else [ragged(number) for number in range(4)]
    folder = written(tmp_path_factory.mktemp("cache"), samples)
    change(folder / name, position % (folder / name).stat().st_size)
    if name == MANIFEST:
        with pytest.raises(Damaged, match=name):
            Cached(folder)
        return
    assert read_all(Cached(folder), samples) == 1


@pytest.mark.parametrize("start", [-64, -(2**63), 2**63 - 1, 2**40, 64])
@pytest.mark.parametrize("size", [64, -64, -(2**63), 2**63 - 1, 0])
def test_a_row_that_leads_elsewhere_is_damage(tmp_path, start, size):
    folder = written(tmp_path / "c", [torch.ones(16), torch.zeros(16)])
    index = np.fromfile(folder / INDEX, np.int64).reshape(2, -1)
    index[0, 1:3] = start, size
    index.tofile(folder / INDEX)
    with pytest.raises(StorageFailed, match="sample 0 is not as it was written"):
        Cached(folder)[0]


def test_no_other_sample_and_none_of_another_cache_can_stand_in_the_place_of_one(tmp_path):
    folder = written(tmp_path / "c", [torch.ones(16), torch.zeros(16)])
    index = np.fromfile(folder / INDEX, np.int64).reshape(2, -1)
    index[::-1].tofile(folder / INDEX)
    assert read_all(Cached(folder), [torch.ones(16), torch.zeros(16)]) == 2
    mine, other = (written(tmp_path / key, [torch.full((16,), n)], key) for n, key in enumerate(("mine", "other")))
    for name in (DATA, INDEX):
        (mine / name).write_bytes((other / name).read_bytes())
    assert read_all(Cached(mine), [torch.zeros(16)]) == 1


@settings(max_examples=30)
@given(name=st.sampled_from([DATA, INDEX, MANIFEST]), share=st.floats(0, 0.999))
def test_a_file_that_was_cut_off_is_no_cache(tmp_path_factory, name, share):
    folder = written(tmp_path_factory.mktemp("cache"), [ragged(number) for number in range(4)])
    path = folder / name
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(Damaged, match=name):
        Cached(folder)


@pytest.mark.parametrize("name", [DATA, INDEX])
def test_a_file_that_has_grown_is_no_cache(tmp_path, name):
    folder = written(tmp_path / "c", [ragged(number) for number in range(4)])
    with open(folder / name, "ab") as file:
        file.write(bytes(64))
    with pytest.raises(Damaged, match=f"{name} has .* bytes instead of"):
        Cached(folder)


@pytest.mark.parametrize("name", [DATA, INDEX])
def test_a_file_that_is_gone_is_damage(tmp_path, name):
    folder = written(tmp_path / "c", [1, 2])
    (folder / name).unlink()
    with pytest.raises(Damaged, match=name):
        Cached(folder)


def test_without_a_manifest_there_is_no_cache(tmp_path):
    with pytest.raises(FileNotFoundError):
        Cached(tmp_path)


def test_a_cache_that_was_found_damaged_is_not_opened_again(tmp_path):
    folder = written(tmp_path / "c", [torch.ones(100), torch.zeros(100)])
    change(folder / DATA, 500)
    cached = Cached(folder)
    with pytest.raises(StorageFailed, match="run it again: the cache is built anew"):
        cached[1]
    with pytest.raises(Damaged, match="sample 1 is not as it was written"):
        Cached(folder)


def test_where_the_mark_cannot_be_written_the_error_says_what_to_remove(tmp_path, monkeypatch):
    folder = written(tmp_path / "c", [torch.ones(100)])
    change(folder / DATA, 5)

    def read_only(path: Path, data: bytes) -> None:
        raise StorageFailed("this disk is read-only")

    monkeypatch.setattr(files, "write_atomically", read_only)
    with pytest.raises(StorageFailed, match=f"remove {folder}"):
        Cached(folder)[0]


def test_a_cache_of_another_schema_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_file, "SCHEMA", 7)
    folder = written(tmp_path / "c", [1])
    monkeypatch.undo()
    with pytest.raises(Damaged, match="has the schema 7, and this version of hasten reads 2"):
        Cached(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"manifest": {}, "digest": ""}', "[" * 100_000, "null", '"a"'])
def test_any_other_text_is_no_manifest(tmp_path, text):
    folder = written(tmp_path / "c", [1])
    (folder / MANIFEST).write_text(text)
    with pytest.raises(Damaged, match=MANIFEST):
        Cached(folder)


@pytest.mark.parametrize(
    "form",
    [
        ["exec"],
        ["array", "float3", 1],
        ["tensor", "float3", 1],
        ["tensor"],
        {},
        3,
        ["dict", 5],
        ["dict", [["a"]]],
        ["tensor", "load", 1],
    ],
)
def test_a_form_that_this_version_does_not_know_is_damage(tmp_path, form):
    folder = written(tmp_path / "c", [1])
    content = json.loads((folder / MANIFEST).read_text())["manifest"] | {"form": form}
    (folder / MANIFEST).write_text(json.dumps({"digest": cache_file._digest_of(content), "manifest": content}))
    with pytest.raises(Damaged, match=f"{MANIFEST} names a form of samples that there is not: "):
        Cached(folder)


def test_a_manifest_names_what_a_person_looks_for(tmp_path):
    manifest = json.loads((written(tmp_path / "c", [1, 2]) / MANIFEST).read_text())["manifest"]
    assert (manifest["key"], manifest["about"], manifest["samples"], manifest["bad"]) == ("key", "about", 2, 0)


def test_a_sample_is_checked_once(tmp_path, monkeypatch):
    checked, check = list[int](), zlib.crc32

    def counted(data, start=0) -> int:
        checked.append(len(data))
        return check(data, start)

    cached = Cached(written(tmp_path / "c", [torch.ones(100), torch.zeros(100)]))
    monkeypatch.setattr(cache_file.zlib, "crc32", counted)
    for index in (0, 0, 1, 0, 1):
        cached[index]
    assert len(checked) == 2 * 2, "the row and the values of each"


def test_what_a_forked_process_checked_is_checked(tmp_path):
    cached = Cached(written(tmp_path / "c", [torch.ones(100), torch.zeros(100)]))
    assert file_faults.ended(file_faults.started(lambda: cached[1].equal(torch.zeros(100))))
    assert cached._checked.tolist() == [False, True]
