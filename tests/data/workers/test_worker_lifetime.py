"""Workers serve one epoch after the other, have seeds of their own, and end with their training process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, get_worker_info

from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.workers.hang_limit import Patience
from support.data.broken_workers import feed_of, nothing_left_behind, read, requests
from support.data.loaders import TWO_WORKERS, Drawing, epoch_of

LONG = Patience(seconds=120)  # longer than a test may take


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left_behind():
        yield
        gc.collect()


arrived = multiprocessing.Event()


class Announced:
    """A batch that tells when it has come into the training process."""

    def __init__(self, samples):
        self.samples = samples

    def __reduce__(self):
        return announced, (self.samples,)


def announced(samples):
    arrived.set()
    return Announced(samples)


@pytest.mark.parametrize("count", [2, 3])
def test_batches_that_came_before_one_that_lags_do_not_leak_into_the_next_epoch(count):
    class Lagging(Drawing):
        def __getitem__(self, index):
            if index == 0:
                arrived.wait(60)  # for a batch of another worker
            return index

    arrived.clear()
    options = LoaderOptions(workers=count, prefetch_factor=3, persistent_workers=True)
    feed = feed_of(Lagging(200), options, patience=LONG, collate=Announced)
    left = feed.answers(requests(100))
    assert next(left).samples == [0, 1, 2, 3]
    left.close()
    later = [request for request in requests(160) if request.indices[0] >= 100]
    found = [batch.samples for batch in feed.answers(later)]
    assert found == [list(request.indices) for request in later]
    feed.close()


class Seeds(Drawing):
    def __getitem__(self, index):
        return index, get_worker_info().seed >> 1  # as int64


def test_each_worker_of_each_rank_and_job_seed_has_a_seed_of_its_own():
    def seeds(seed, rank):
        epoch = epoch_of(Seeds(16), seed=seed, rank=rank, world_size=2, batch_size=4, options=TWO_WORKERS)
        return {number for one in epoch for number in one.batch[1].tolist()}

    assert len(seeds(7, 0) | seeds(7, 1) | seeds(8, 0)) == 6
    assert seeds(7, 0) == seeds(7, 0)


def test_a_worker_ends_where_its_training_process_died_while_worker_init_fn_ran(monkeypatch):
    monkeypatch.setattr("hasten.data.workers.worker_main.PARENT_SECONDS", 0.05)
    begun, goes_on = multiprocessing.SimpleQueue(), multiprocessing.Event()

    def init(number):
        begun.put(os.getpid())
        goes_on.wait(60)

    def train():
        loaded = DataLoader(Drawing(24), batch_size=4, num_workers=1, worker_init_fn=init)
        read(feed_of(loaded, LoaderOptions(workers=1), patience=LONG), 24)

    trainer = multiprocessing.Process(target=train)
    trainer.start()
    worker = begun.get()
    ends = os.pidfd_open(worker)
    try:
        trainer.kill()
        trainer.join()
        goes_on.set()
        assert select.select([ends], [], [], 20)[0]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(ends, signal.SIGKILL)
        os.close(ends)


EXITING = """
import weakref

class Library: ...

library = Library()
weakref.finalize(library, int)  # Python runs these hooks in the reverse order of their first use

from support.data.broken_workers import Harmful, feed_of, requests
from hasten.data.loading.loader_options import LoaderOptions

feed = feed_of(Harmful("kill", bad=-1), LoaderOptions(workers=2))
answers = feed.answers(requests(24))
next(answers)
"""


def test_a_script_that_ends_in_an_epoch_does_not_wait_for_its_workers():
    folder = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    subprocess.run([sys.executable, "-c", EXITING], env=environment, timeout=150, check=True)
