"""What cannot be read stops the run and is named, or another sample stands in for it: the same one everywhere."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, SubsetRandomSampler

import hasten
from data.pictures import jpeg, write
from hasten.data.images.image_folder import ImageFolder
from hasten.data.loading.bad_samples import ATTEMPTS, Ledger, Replaced, stand_ins
from hasten.data.loading.batch_loader import EvaluationLoader
from hasten.data.loading.data_errors import reason_of
from hasten.data.sources.job_data import source_of
from hasten.errors import DataFailed, JobError, OutOfMemory, StorageFailed, UserCodeFailed
from support.data.loaders import (
    HERE,
    ONE_WORKER,
    TWO_WORKERS,
    Drawing,
    DrawingStream,
    content,
    drawn,
    epoch_of,
    loader_of,
)

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

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


# By default


@pytest.mark.parametrize("options", [HERE, ONE_WORKER], ids=["here", "worker"])
@pytest.mark.fault("corrupt sample")
def test_by_default_a_run_stops_and_names_the_sample_and_the_file(options, tmp_path):
    with pytest.raises(
        DataFailed, match=r"sample 700 of Job.train could not be read in epoch 0: OSError: cannot"
    ) as stop:
        epoch_of(Damaged({700}), options=options)
    assert stop.value.exit_code == 11
    files = {f"c/{number}.jpg": jpeg(9, 9, number) for number in range(3)} | {"c/1.jpg": b""}
    pictures = ImageFolder(write(tmp_path, files), hasten.CenterCrop(8))
    with pytest.raises(DataFailed, match=rf"sample 1 .*{tmp_path}/c/1.jpg: is empty: zero bytes") as stop:
        epoch_of(pictures, options=options)
    assert stop.value.exit_code == 11


def test_a_fault_in_the_users_code_is_theirs():
    with pytest.raises(UserCodeFailed, match="KeyError") as stop:
        epoch_of(Damaged({700}, error=KeyError))
    assert stop.value.exit_code == 10


# Another one in its place


@pytest.mark.trap(40)
@pytest.mark.parametrize("kind", [Damaged, DamagedTogether])
@pytest.mark.fault("corrupt sample")
def test_batches_keep_their_sizes_and_all_others_their_samples(kind):
    found, told = replaced(kind({700, 3}))
    seen = Counter(index for batch, *_ in found for index in batch[0])
    assert [samples for _, samples, _ in found] == [100] * 20
    assert sorted((Counter(range(COUNT)) - seen).elements()) == [3, 700]
    stood_in = sorted((seen - Counter(range(COUNT))).elements())
    assert stood_in == sorted(next(stand_ins(7, bad, COUNT)) for bad in (3, 700))
    assert len(told) == 2


def test_no_other_sample_is_changed_by_it():
    """A stand-in is read in the middle of a batch, and draws."""
    clean, found = replaced(Damaged(set()))[0], replaced(Damaged({700, 3}))[0]
    places = [one == other for one, other in zip(rows_of(clean), rows_of(found), strict=True)]
    assert places.count(False) == 2


def test_a_stand_in_is_read_with_the_random_numbers_of_the_one_it_stands_for():
    clean, found = replaced(Damaged(set()))[0], replaced(Damaged({700}))[0]
    (missing,) = [row for index, row in rows_of(clean) if index == 700]
    assert [index for index, row in rows_of(found) if row == missing] == [next(stand_ins(7, 700, COUNT))]


@pytest.mark.trap(40)
@settings(max_examples=6)
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
    by = next(stand_ins(7, 700, COUNT))
    assert line == (f"sample 700 of train cannot be read and is replaced by sample {by}: OSError: cannot read file 700")
    assert loader.replaced() == []


def test_pictures_that_cannot_be_read_are_replaced_alike_by_any_number_of_workers(tmp_path):
    files = {f"c/{number:04}.jpg": jpeg(9, 9, number % 9) for number in range(1000)}
    data = ImageFolder(write(tmp_path, files | {"c/0005.jpg": b"no picture"}), hasten.RandomResizedCrop(8))
    here, told = replaced(data)
    assert replaced(data, options=TWO_WORKERS) == (here, told)
    assert "sample 5 of train cannot be read" in told[0]
    assert f"{tmp_path}/c/0005.jpg: is no picture" in told[0]
    assert sum(samples for _, samples, _ in here) == 1000


def test_the_part_of_a_batch_that_was_filled_before_the_damage_is_written_over(tmp_path):
    class Torn(ImageFolder):
        def fill(self, filling, place, index, draws):
            if index == 5:
                super().fill(filling, place, 6, draws)
                raise OSError("torn")
            super().fill(filling, place, index, draws)

    files = {f"c/{number:04}.jpg": jpeg(9, 9, number) for number in range(1000)}
    write(tmp_path, files)
    found, told = replaced(Torn(tmp_path, hasten.CenterCrop(8)), shuffle=False)
    by = next(stand_ins(7, 5, 1000))
    assert f"by sample {by}: OSError: torn" in told[0]
    plain = content(epoch_of(ImageFolder(tmp_path, hasten.CenterCrop(8)), shuffle=False, batch_size=100))
    wanted = [picture for batch, *_ in plain for picture in batch[0]][by]
    assert found[0][0][0][5] == wanted


def test_a_stand_in_that_cannot_be_read_either_is_passed_over():
    first, second, *_ = stand_ins(7, 700, COUNT)
    found, told = replaced(Damaged({700, first}))
    assert f"sample 700 of train cannot be read and is replaced by sample {second}: " in " ".join(told)
    assert len(told) == 2
    assert sum(samples for _, samples, _ in found) == COUNT


def test_where_nothing_can_stand_in_the_first_is_told():
    with pytest.raises(DataFailed, match=r"sample 3 of .*train could not be read") as stop:
        replaced(Damaged({3, *stand_ins(7, 3, COUNT)}), shuffle=False)
    assert len(stop.value.__cause__.__notes__) == ATTEMPTS
    assert "would stand in for it, cannot be read either: OSError" in stop.value.__cause__.__notes__[0]
    with pytest.raises(UserCodeFailed, match="KeyError"):
        replaced(Damaged(range(COUNT), error=KeyError))


# Too many


@pytest.mark.fault("corrupt sample")
def test_more_than_one_in_a_thousand_are_no_accident():
    _, told = replaced(Damaged({1, 2}))
    assert len(told) == 2
    with pytest.raises(DataFailed, match=r"3 of 2000 samples could not be read, which is more than .* of them") as stop:
        replaced(Damaged({1, 2, 3}))
    assert stop.value.exit_code == 11
    assert "the last was sample" in stop.value.what
    assert "OSError: cannot read file" in stop.value.what


def test_they_are_counted_over_all_epochs_and_each_once():
    ledger = Ledger("train", 2000)
    for _ in range(5):
        ledger.take((Replaced(1, 9, "why"), Replaced(2, 9, "why")))
    assert len(list(ledger.untold())) == 2
    with pytest.raises(DataFailed):
        ledger.take((Replaced(3, 9, "why"),))
    assert len(list(ledger.untold())) == 1


def test_a_ledger_goes_on_from_a_state_that_any_file_can_hold():
    before, after = Ledger("train", 2000), Ledger("train", 2000)
    before.take((Replaced(1, 9, "why"),))
    list(before.untold())
    before.take((Replaced(2, 9, "why"),))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    after.take((Replaced(1, 9, "why"), Replaced(2, 9, "why")))
    assert [line.split()[1] for line in after.untold()] == ["2"]
    with pytest.raises(DataFailed, match=r"3 of 2000 .* the last was sample 3"):
        after.take((Replaced(3, 9, "why"),))


def test_a_sample_is_told_when_whoever_tells_it_has_done_so():
    ledger = Ledger("train", 3000)
    ledger.take((Replaced(1, 9, "why"), Replaced(2, 9, "why"), Replaced(3, 9, "why")))
    for line in ledger.untold():
        if "sample 2" in line:
            break
    assert [line.split()[1] for line in ledger.untold()] == ["2", "3"]


def test_below_a_thousand_samples_none_is_replaced():
    with pytest.raises(DataFailed, match=r"1 of 999 samples could not be read"):
        replaced(Damaged({1}, count=999))
    assert replaced(Damaged({1}, count=1000))[1]


# Where nothing is replaced


def test_an_evaluation_stops():
    source = source_of(Damaged({700}), field="valid")
    with pytest.raises(DataFailed, match=r"sample 700 of .*valid could not be read in an evaluation"):
        list(EvaluationLoader(source, batch_size=100, options=HERE, seed=7))


def test_a_stream_is_refused():
    with pytest.raises(JobError, match=r"Job.on_bad_sample: is \"replace\", and train is an iterable data set"):
        loader_of(DrawingStream(5), replace_bad=True)


def test_columns_have_nothing_to_replace():
    assert replaced((torch.arange(10.0), torch.arange(10)))[1] == []


def test_a_collate_that_fails_is_told_and_not_replaced():
    def collate(samples):
        raise TypeError("no")

    with pytest.raises(UserCodeFailed, match="TypeError: no"):
        replaced(Damaged({1}), collate=collate, shuffle=False)


def test_the_reason_is_one_line_with_the_place_where_it_is_known():
    assert reason_of(ValueError("no number")) == "ValueError: no number"
    assert reason_of(ValueError("no\n\tnumber\n")) == "ValueError: no number"
    assert reason_of(EOFError()) == "EOFError"
    assert reason_of(DataFailed("is empty", where="a.jpg", fix="take it out")) == "a.jpg: is empty"
    assert reason_of(DataFailed("is empty")) == "is empty"


# Which ones stand in


@given(seed=st.integers(0, 2**32), index=st.integers(0, 10**6), count=st.integers(1, 10**6))
def test_stand_ins_are_samples_of_the_data_set_and_follow_from_seed_and_index(seed, index, count):
    found = list(stand_ins(seed, index, count))
    assert len(found) == ATTEMPTS
    assert all(0 <= each < count for each in found)
    assert found == list(stand_ins(seed, index, count))


def test_stand_ins_are_spread_over_the_data_set():
    counts, _ = np.histogram([next(stand_ins(7, index, 1000)) for index in range(4000)], bins=20, range=(0, 1000))
    assert ((counts - 200) ** 2 / 200).sum() < 45
    assert list(stand_ins(7, 1, 10**6)) != list(stand_ins(8, 1, 10**6))
    assert len(set(stand_ins(7, 1, 10**6))) == ATTEMPTS


def no_room_in_torch(what):
    return torch.empty(1 << 62, dtype=torch.uint8)


@pytest.mark.parametrize("kind", [Damaged, DamagedTogether])
@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError, no_room_in_torch])
def test_a_sample_that_there_is_no_memory_for_is_not_a_bad_one(kind, error):
    with pytest.raises(OutOfMemory, match=r"sample 700 of Job.train could not be read in epoch 0"):
        replaced(kind({700}, error=error))


def test_a_damaged_cache_is_not_a_bad_sample():
    class Kept(Damaged):
        def __getitem__(self, index):
            if index in self.bad:
                raise StorageFailed("not as it was written", where="cache")
            return super().__getitem__(index)

    with pytest.raises(StorageFailed, match=r"sample 700 .*not as it was written"):
        epoch_of(Kept({700}), replace_bad=True)


def test_a_sampler_of_the_users_own_is_refused_as_what_stands_in_may_be_none_of_its_samples():
    data = DataLoader(Damaged({3}), batch_size=4, sampler=SubsetRandomSampler(range(10)))
    with pytest.raises(JobError, match="has a sampler of its own"):
        loader_of(data, replace_bad=True, batch_size=None)
