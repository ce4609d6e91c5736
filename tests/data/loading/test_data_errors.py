import errno
import multiprocessing
import os
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from hasten.data.loading.data_errors import is_out_of_memory
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
        (StopIteration, UserCodeFailed),
        (OSError, DataFailed),
        (torch.OutOfMemoryError, OutOfMemory),
    ],
)
def test_a_sample_that_cannot_be_read_is_named_with_its_epoch_and_its_cause(options, error, kind):
    with pytest.raises(kind) as caught:
        epoch_of(Failing(12, error, bad=9), 5, options=options)
    assert "sample 9 of Job.train could not be read in epoch 6" in str(caught.value)
    assert f"{error.__name__}: this one is broken" in str(caught.value)
    assert "test_data_errors.py" in caught.value.where
    assert "in __getitem__" in caught.value.where
    assert type(caught.value.__cause__) is error
    if options.workers:
        assert any("in __getitem__" in note for note in caught.value.__cause__.__notes__)


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


def test_a_stream_that_fails_names_the_position():
    class Breaking(IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from range(5)
            raise ValueError("torn")

    loader = loader_of(Breaking(), options=ONE_WORKER)
    found = loader.epoch(0)
    next(found)
    with pytest.raises(UserCodeFailed, match=r"sample 5 of Job.train could not be read in epoch 1: ValueError: torn"):
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


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("unable to mmap 8 bytes from file <rows>: Cannot allocate memory (12)"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("not enough memory is asked for"), False),
    ],
)
def test_a_lack_of_memory_is_known_by_whatever_name_it_comes_and_nothing_else_is_taken_for_one(error, lacks):
    assert is_out_of_memory(error) is lacks
