"""Batches that are only looked at, and data that tells which process has read them."""

import multiprocessing
import os

import pytest

from support.data.broken_workers import nothing_left_behind
from support.data.loaders import loader_of

copies = pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="workers do not start as copies here")


class Remembering:
    """Each sample is the process that reads it; the object remembers how many it was asked for."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.reads += 1
        return os.getpid()


class Self(dict):
    """Moves itself, as a tokenizer's encoding does."""

    def to(self, device):
        return self


def looked_at(data, **arguments):
    with nothing_left_behind():
        loader = loader_of(data, **arguments)
        batch = loader.first_batch()
        loader.close()
    return batch


def readers(data, **arguments):
    """The processes that have read the first batch."""
    return {*looked_at(data, **arguments).tolist()}
