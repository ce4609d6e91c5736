"""Where some samples cannot be read, a cache keeps that: they are replaced by the same others as without it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hasten
from data.pictures import jpeg, write
from hasten.data.cache.cache_building import open_cache
from hasten.data.cache.cache_file import DATA, Cached
from hasten.data.cache.cached_source import Watcher, kept
from hasten.data.loading.batch_loader import TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.augmented import Augmented
from hasten.data.sources.job_data import source_of
from hasten.errors import DataFailed, OutOfMemory, StorageFailed, UserCodeFailed
from hasten.facts.plan import make_plan
from support import laptop, small_job
from support.data.cached_samples import same
from support.data.loaders import content, drawn

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

COUNT = 2000  # two of them may be bad
NOBODY = Watcher(lambda text: None, lambda done, count: None)


class Damaged:
    """Some samples cannot be read: steady, as the others are."""

    steady_reason = "a sample follows from its index"

    def __init__(self, bad: set[int], error: type[Exception] = OSError, count: int = COUNT) -> None:
        self.bad, self.error, self.count = frozenset(bad), error, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise self.error(f"cannot read file {index}")
        return index, torch.full((2, 3), index, dtype=torch.float64) / 7, np.arange(4) * index


def shaken(sample: Any) -> Any:
    """Drawn from all three generators, and written into what was read."""
    index, values, numbers = sample
    values += drawn().view(2, 3)
    return index, values, numbers


def kept_with(data: Any, folder: Path, said: list[str] | None = None) -> Cached:
    say = None if said is None else said.append
    return open_cache(data, folder, say=say, on_bad=lambda bad: None)


def read(data: Any, options: LoaderOptions, epochs: int = 2, rank: int = 0, ranks: int = 1) -> Any:
    """Every batch of some epochs, and what was told of samples that were replaced."""
    source = kept(source_of(data, field="train"), options, torch.device("cpu"), laptop(), NOBODY, replace_bad=True)
    arguments: Any = {"batch_size": 100, "options": options, "seed": 7, "replace_bad": True}
    loader = TrainLoader(source, **arguments, rank=rank, world_size=ranks)
    found = [content(loader.epoch(number)) for number in range(epochs)]
    told = loader.replaced()
    loader.close()
    return found, told


# A cache with samples that cannot be read


@pytest.mark.parametrize("bad", [{0}, {0, 1}, {7}, {COUNT - 1}, {0, COUNT - 1}])
def test_it_keeps_why_a_sample_cannot_be_read_and_all_others_as_they_are(tmp_path, bad):
    data, said = Damaged(bad), list[str]()
    cached = kept_with(data, tmp_path, said)
    assert cached.bad == len(bad)
    for index in range(COUNT):
        if index in bad:
            with pytest.raises(DataFailed, match=f"^OSError: cannot read file {index}\n") as caught:
                cached[index]
            assert "test_cache_bad_samples.py" in caught.value.fix
            assert f"dataset[{index}]" in caught.value.fix
        else:
            assert same(cached[index], data[index])
    assert f"{len(bad)} of 2000 samples could not be read when the cache was built" in said[-1]
    assert str(cached.folder) in said[-1]


def test_an_error_of_hasten_s_own_comes_with_the_same_words(tmp_path):
    files = {f"c/{number:04}.jpg": jpeg(9, 9, number % 9) for number in range(1000)} | {"c/0005.jpg": b""}
    pictures = hasten.ImageFolder(write(tmp_path / "p", files), hasten.CenterCrop(8)).steady
    with pytest.raises(DataFailed) as wanted:
        pictures[5]
    with pytest.raises(DataFailed) as found:
        kept_with(pictures, tmp_path / "c").view(5)
    assert found.value.args == wanted.value.args


def test_it_is_opened_whatever_the_job_says_and_raises_only_where_one_is_read(tmp_path):
    data, said = Damaged({3}), list[str]()
    kept_with(data, tmp_path)
    cached = open_cache(data, tmp_path, say=said.append)
    assert same(cached[4], data[4])
    assert "1 of 2000 samples could not be read when the cache was built" in said[-1]
    assert cached.columns() is None
    with pytest.raises(DataFailed, match="OSError: cannot read file 3"):
        cached[3]


@pytest.mark.parametrize(("error", "kind"), [(OSError, DataFailed), (KeyError, UserCodeFailed)])
def test_by_default_the_first_one_ends_the_build(tmp_path, error, kind):
    with pytest.raises(kind, match="sample 7 could not be read"):
        open_cache(Damaged({7, 900}, error), tmp_path)
    assert all(name.endswith(".lock") for name in os.listdir(tmp_path))


def test_more_than_one_in_a_thousand_end_the_build_as_they_would_end_the_run(tmp_path):
    with pytest.raises(DataFailed) as plain:
        read(Damaged({1, 2, 900}), LoaderOptions(), epochs=1)
    with pytest.raises(DataFailed, match="3 of 2000 samples could not be read, which is more than ") as caught:
        read(Damaged({1, 2, 900}), LoaderOptions(cache=tmp_path))
    assert "the last was sample 900: OSError: cannot read file 900" in caught.value.what
    assert (caught.value.where, caught.value.fix) == (plain.value.where, plain.value.fix)
    with pytest.raises(DataFailed, match="1 of 999 samples could not be read"):
        read(Damaged({500}, count=999), LoaderOptions(cache=tmp_path))
    assert all(name.endswith(".lock") for name in os.listdir(tmp_path))


def too_many_files(what: str) -> OSError:
    return OSError(errno.EMFILE, what)


@pytest.mark.parametrize(
    ("error", "kind"), [(StorageFailed, StorageFailed), (MemoryError, OutOfMemory), (too_many_files, DataFailed)]
)
@pytest.mark.parametrize("at", [0, 7])
def test_what_is_no_fault_of_the_sample_s_ends_the_build(tmp_path, error, kind, at):
    with pytest.raises(kind, match="cannot read file") as caught:
        kept_with(Damaged({at}, error), tmp_path)
    assert "2000 samples" not in caught.value.what
    assert all(name.endswith(".lock") for name in os.listdir(tmp_path))


class Otherwise(Damaged):
    """One sample can be read, and not be kept."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) if index != 5 else "text"


class DrawsOnce(Damaged):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) if index != 5 else torch.rand(2)


@pytest.mark.parametrize(("kind", "what"), [(Otherwise, "another form"), (DrawsOnce, "global generator")])
def test_what_can_be_read_and_not_be_kept_is_no_bad_sample(tmp_path, kind, what):
    with pytest.raises(DataFailed, match=f"sample 5 .*{what}"):
        kept_with(kind({9}), tmp_path)


def test_a_flipped_bit_in_what_is_kept_of_one_is_found(tmp_path):
    cached = kept_with(Damaged({0}, count=1000), tmp_path)
    data = bytearray((cached.folder / DATA).read_bytes())
    start = int(cached._index[0, 1])
    data[start + 5] ^= 1
    (cached.folder / DATA).write_bytes(data)
    with pytest.raises(StorageFailed, match="sample 0 is not as it was written"):
        Cached(cached.folder)[0]


# Nothing changes by it


READERS: list[dict[str, Any]] = [{}, {"workers": 2}, {"workers": 2, "worker_kind": "threads"}]
RARER = ("empty", "a link to itself")  # harm, which the proof has as well
KINDS = {"steady": lambda bad: Damaged(bad), "in two parts": lambda bad: Augmented(Damaged(bad), shaken)}


@pytest.mark.proof
@pytest.mark.trap(40)
@pytest.mark.trap(41)
@settings(max_examples=12)
@given(
    bad=st.sets(st.integers(0, COUNT - 1) | st.sampled_from([0, 1, COUNT - 1]), max_size=2),
    kind=st.sampled_from(sorted(KINDS)),
    reader=st.sampled_from(READERS),
    cached=st.booleans(),
    in_memory=st.sampled_from([None, "host"]),
    world=st.sampled_from([(0, 1), (0, 2), (1, 2)]),
)
def test_kept_in_any_way_batches_and_stand_ins_are_the_same(
    tmp_path_factory, bad, kind, reader, cached, in_memory, world
):
    folder = tmp_path_factory.mktemp("cache") if cached else False
    data = KINDS[kind](bad)
    options = LoaderOptions(**reader, cache=folder, in_memory=in_memory)
    assert read(data, options, 2, *world) == read(data, LoaderOptions(), 2, *world)


@pytest.mark.trap(40)
@pytest.mark.trap(41)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "harm",
    ["cut off", "no picture", "a link to nothing", *(pytest.param(each, marks=pytest.mark.proof) for each in RARER)],
)
def test_pictures_that_cannot_be_read_are_replaced_alike_with_a_cache(tmp_path, reader, harm):
    whole = jpeg(40, 30, 3)
    harmed = {"cut off": whole[: len(whole) // 2], "no picture": b"no picture"}.get(harm, b"")
    files = {f"c/{number:04}.jpg": jpeg(12, 9, number % 9) for number in range(1000)} | {"c/0005.jpg": harmed}
    root = write(tmp_path / "p", files)
    if "link" in harm:
        (root / "c/0005.jpg").unlink()
        (root / "c/0005.jpg").symlink_to("nothing.jpg" if harm == "a link to nothing" else "0005.jpg")
    data = hasten.ImageFolder(root, hasten.RandomResizedCrop(8))
    wanted, told = read(data, LoaderOptions(), epochs=1)
    assert len(told) == 1
    assert read(data, LoaderOptions(**reader, cache=tmp_path / "c"), epochs=1) == (wanted, told)


def test_what_cannot_be_replaced_in_columns_stays_out_of_memory_with_the_reason(tmp_path):
    for cache in (False, tmp_path):
        source, options = source_of(Damaged({700}), field="train"), LoaderOptions(in_memory="host", cache=cache)
        held = kept(source, options, torch.device("cpu"), laptop(), NOBODY, replace_bad=True)
        assert not held.gathers
        assert "sample 700 cannot be read, and columns have no place for another: OSError:" in held.notices[-1]
        with pytest.raises(DataFailed, match="cannot read file 700"):
            kept(source, options, torch.device("cpu"), laptop(), NOBODY)


def test_a_lack_of_memory_while_columns_are_read_is_no_bad_sample():
    source, options = source_of(Damaged({700}, MemoryError), field="train"), LoaderOptions(in_memory="host")
    with pytest.raises(OutOfMemory, match="sample 700 could not be read: MemoryError"):
        kept(source, options, torch.device("cpu"), laptop(), NOBODY, replace_bad=True)


class Rows(Damaged):
    steady_reason = Damaged.steady_reason

    def __getitem__(self, index: int) -> Any:
        return torch.full((6,), super().__getitem__(index)[0] / COUNT), index % 3


@pytest.mark.parametrize("on_bad_sample", ["stop", "replace"])
def test_the_job_says_whether_a_run_may_keep_such_a_cache(tmp_path, on_bad_sample):
    def trained(plan: hasten.Plan | None) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        job = small_job(train=Rows({7}), batch_size=100, epochs=1, on_bad_sample=on_bad_sample)
        return dict(hasten.train(job, plan, receivers=[]).weights)

    plan = make_plan(cache=str(tmp_path))
    if on_bad_sample == "stop":
        with pytest.raises(DataFailed, match="sample 7 could not be read"):
            trained(plan)
    else:
        assert same(trained(plan), trained(None))
