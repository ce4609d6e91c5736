import multiprocessing
import os
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from hasten.data.loading.batch_loader import EvaluationLoader
from hasten.data.sources.job_data import source_of
from hasten.errors import DataFailed, OutOfMemory, UserCodeFailed
from support.data.loaders import (
    HERE,
    ONE_WORKER,
    TWO_WORKERS,
    Drawing,
    DrawingStream,
    epoch_of,
    loader_of,
)

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class Failing(Drawing):
    def __init__(self, count: int, error: type[Exception], bad: int) -> None:
        super().__init__(count)
        self.error, self.bad = error, bad

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise self.error("this one is broken")
        return index


class Stubborn(Exception):
    """Cannot be sent to another process: it is made of two arguments and remembers one."""

    def __init__(self, message: str, code: int = 3) -> None:
        super().__init__(message)
        self.lock = open(os.devnull)  # noqa: SIM115

    def __del__(self) -> None:
        self.lock.close()


@pytest.mark.parametrize("options", [HERE, TWO_WORKERS], ids=["here", "workers"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError, UserCodeFailed),
        (StopIteration, UserCodeFailed),
        (OSError, DataFailed),
        (EOFError, DataFailed),
        (MemoryError, OutOfMemory),
        (torch.OutOfMemoryError, OutOfMemory),
    ],
)
def test_a_sample_that_cannot_be_read_is_named_with_its_epoch_and_its_cause(options, error, kind):
    with pytest.raises(kind) as caught:
        epoch_of(Failing(12, error, bad=9), 5, options=options)
    assert "sample 9 of Job.train could not be read in epoch 5" in str(caught.value)
    assert f"{error.__name__}: this one is broken" in str(caught.value)
    assert "test_failures.py" in caught.value.where
    assert "in __getitem__" in caught.value.where
    assert type(caught.value.__cause__) is error
    if options.workers:
        assert any("in __getitem__" in note for note in caught.value.__cause__.__notes__)


class Wide(Drawing):
    """Samples that take one byte each, as long as nobody copies them."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1, dtype=torch.uint8).expand(1 << 58)


def test_a_sample_that_the_host_has_no_memory_for_is_told_as_that():
    class Greedy(Drawing):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index), torch.empty(1 << 62, dtype=torch.uint8)

    with pytest.raises(OutOfMemory, match=r"sample 0 .*could not be read in epoch 0: RuntimeError: .*allocate memory"):
        epoch_of(Greedy(12), shuffle=False)


def no_room(samples: list[Any]) -> Any:
    raise MemoryError("cannot allocate")


def no_room_in_torch(samples: list[Any]) -> Any:
    return torch.empty(1 << 62, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("data", "arguments", "said"),
    [
        (Drawing(12), {"collate": no_room}, "MemoryError: cannot allocate"),
        (Drawing(12), {"collate": no_room_in_torch}, "RuntimeError: .* can't allocate memory"),
        (Wide(12), {}, "RuntimeError: .* can't allocate memory"),
    ],
    ids=["Python", "torch", "without a collate"],
)
def test_a_lack_of_memory_for_a_batch_is_no_fault_of_its_samples(data, arguments, said):
    with pytest.raises(OutOfMemory, match=f"could not become a batch in epoch 0: {said}") as caught:
        epoch_of(data, **arguments)
    assert caught.value.fix == "use a smaller batch_size, or fewer workers"


def test_no_worker_outlives_an_error_or_an_epoch_left_early():
    with pytest.raises(UserCodeFailed):
        epoch_of(Failing(12, ValueError, bad=9), options=TWO_WORKERS)
    assert multiprocessing.active_children() == []
    for _ in loader_of(Drawing(12), options=TWO_WORKERS).epoch(0):
        break
    assert multiprocessing.active_children() == []


def test_an_exception_that_cannot_leave_its_worker_is_told_in_words():
    with pytest.raises(UserCodeFailed, match="Stubborn: this one is broken") as caught:
        epoch_of(Failing(4, Stubborn, bad=1), options=ONE_WORKER)
    assert "Stubborn: this one is broken" in str(caught.value.__cause__)


@pytest.mark.parametrize("options", [HERE, ONE_WORKER], ids=["here", "worker"])
def test_a_stream_that_fails_names_the_position(options):
    class Breaking(IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from range(5)
            raise ValueError("torn")

    loader = loader_of(Breaking(), options=options)
    found = loader.epoch(0)
    next(found)
    with pytest.raises(UserCodeFailed, match=r"sample 5 of Job.train could not be read in epoch 0: ValueError: torn"):
        next(found)


def test_samples_that_make_no_batch_are_the_datas_fault_and_a_failing_collate_the_codes():
    ragged = [torch.zeros(2), torch.zeros(3)]
    with pytest.raises(DataFailed, match=r"2 samples of Job\.train, the first with index"):
        epoch_of(ragged)

    def collate(samples: list[Any]) -> Any:
        raise TypeError("no\n  more")

    with pytest.raises(UserCodeFailed, match="TypeError: no more"):
        epoch_of(ragged, collate=collate)
    with pytest.raises(UserCodeFailed, match="TypeError: no"):
        epoch_of(DrawingStream(5), collate=collate)


def test_reading_many_at_once_names_the_first_when_it_fails():
    class FailingTogether(Drawing):
        def __getitems__(self, indices: list[int]) -> Any:
            raise KeyError("gone")

    with pytest.raises(UserCodeFailed, match="the first with index 0"):
        epoch_of(FailingTogether(4), shuffle=False)


def test_an_evaluation_that_fails_says_so():
    source = source_of(Failing(6, ValueError, bad=3), field="valid")
    with pytest.raises(UserCodeFailed, match=r"sample 3 of Job.valid could not be read in an evaluation"):
        list(EvaluationLoader(source, batch_size=4, options=HERE, seed=7))
