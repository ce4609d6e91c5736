"""What cannot be read stops the run and is named, or another sample stands in for it: the same one everywhere."""

import json
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, SubsetRandomSampler

import hasten
from hasten.data.images.image_folder import ImageFolder
from hasten.data.loading.bad_samples import Ledger, Replaced, replacements
from hasten.errors import DataFailed, JobError
from support.data.image_cases import jpeg, write
from support.data.loaders import (
    HERE,
    ONE_WORKER,
    TWO_WORKERS,
    Drawing,
    content,
    drawn,
    epoch_of,
    loader_of,
)

COUNT = 2000  # two of them may be bad


class Damaged(Drawing):
    """Some samples cannot be read; every one that can holds its index and random numbers."""

    def __init__(self, bad, count=COUNT, error=OSError):
        super().__init__(count)
        self.bad, self.error = frozenset(bad), error

    def __getitem__(self, index):
        torch.rand(3)  # drawn before the damage is found
        if index in self.bad:
            raise self.error(f"cannot read file {index}")
        return index, drawn()


class DamagedTogether(Damaged):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def replaced(data, number=0, **arguments):
    loader = loader_of(data, **({"replace_bad": True, "batch_size": 100} | arguments))
    found = content(loader.epoch(number))
    told = loader.replaced()
    loader.close()
    return found, told


def rows_of(found):
    return [(index, tuple(row)) for batch, *_ in found for index, row in zip(*batch, strict=True)]


@pytest.mark.parametrize("options", [HERE, ONE_WORKER], ids=["here", "worker"])
@pytest.mark.fault("corrupt sample")
def test_by_default_a_run_stops_and_names_the_sample_and_the_file(options, tmp_path):
    with pytest.raises(
        DataFailed, match=r"sample 700 of Job.train could not be read in epoch 1: OSError: cannot"
    ) as stop:
        epoch_of(Damaged({700}), options=options)
    assert stop.value.exit_code == 11
    files = {f"c/{number}.jpg": jpeg(9, 9, number) for number in range(3)} | {"c/1.jpg": b""}
    pictures = ImageFolder(write(tmp_path, files), hasten.CenterCrop(8))
    with pytest.raises(DataFailed, match=rf"sample 1 .*{tmp_path}/c/1.jpg: is empty: zero bytes") as stop:
        epoch_of(pictures, options=options)
    assert stop.value.exit_code == 11


@pytest.mark.trap(40)
@pytest.mark.parametrize("kind", [Damaged, DamagedTogether])
@pytest.mark.fault("corrupt sample")
def test_batches_keep_their_sizes_and_all_others_their_samples(kind):
    found, told = replaced(kind({700, 3}))
    seen = Counter(index for batch, *_ in found for index in batch[0])
    assert [samples for _, samples, _ in found] == [100] * 20
    assert sorted((Counter(range(COUNT)) - seen).elements()) == [3, 700]
    stood_in = sorted((seen - Counter(range(COUNT))).elements())
    assert stood_in == sorted(next(replacements(7, bad, COUNT)) for bad in (3, 700))
    assert len(told) == 2


@pytest.mark.trap(40)
@settings(max_examples=3)
@given(
    bad=st.sets(st.integers(0, COUNT - 1), max_size=2),
    epoch=st.integers(0, 5),
    options=st.sampled_from([ONE_WORKER, TWO_WORKERS]),
    world=st.integers(1, 3),
)
@pytest.mark.fault("corrupt sample")
def test_workers_and_ranks_change_no_stand_in(bad, epoch, options, world):
    alone, told = replaced(Damaged(bad), epoch)
    assert len(told) == len(bad)
    ranks = [replaced(Damaged(bad), epoch, options=options, rank=rank, world_size=world) for rank in range(world)]
    assert sorted(row for found, _ in ranks for row in rows_of(found)) == sorted(rows_of(alone))
    assert sorted(line for _, lines in ranks for line in lines) == sorted(told)


@pytest.mark.fault("corrupt sample")
def test_every_replaced_sample_is_told_once_with_both_and_the_reason():
    loader = loader_of(Damaged({700}), replace_bad=True, batch_size=100)
    assert loader.replaced() == []
    for number in range(3):
        list(loader.epoch(number))
        if number == 0:
            (line,) = loader.replaced()
    by = next(replacements(7, 700, COUNT))
    assert line == (f"sample 700 of train cannot be read and is replaced by sample {by}: OSError: cannot read file 700")
    assert loader.replaced() == []


@pytest.mark.fault("corrupt sample")
def test_more_than_one_in_a_thousand_are_no_accident():
    _, told = replaced(Damaged({1, 2}))
    assert len(told) == 2
    with pytest.raises(DataFailed, match=r"3 of 2000 samples could not be read, which is more than .* of them") as stop:
        replaced(Damaged({1, 2, 3}))
    assert stop.value.exit_code == 11
    assert "the last was sample" in stop.value.what
    assert "OSError: cannot read file" in stop.value.what


def test_a_ledger_goes_on_from_a_state_that_any_file_can_hold():
    before, after = Ledger("train", 2000), Ledger("train", 2000)
    before.take((Replaced(1, 9, "why"),))
    list(before.unreported())
    before.take((Replaced(2, 9, "why"),))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    after.take((Replaced(1, 9, "why"), Replaced(2, 9, "why")))
    assert [line.split()[1] for line in after.unreported()] == ["2"]
    with pytest.raises(DataFailed, match=r"3 of 2000 .* the last was sample 3"):
        after.take((Replaced(3, 9, "why"),))


def test_a_sampler_of_the_users_own_is_refused_as_what_stands_in_may_be_none_of_its_samples():
    data = DataLoader(Damaged({3}), batch_size=4, sampler=SubsetRandomSampler(range(10)))
    with pytest.raises(JobError, match="has its own sampler"):
        loader_of(data, replace_bad=True)
