"""A batch that is only looked at is read by a process that ends with it, and is the batch that training begins with."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hasten.checkpoint.folders import process_folder
from hasten.data.loading import batch_feed as feed
from hasten.data.loading.batch_feed import Feed
from hasten.data.loading.batch_readers import Request, reader_of
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.job_data import source_of
from hasten.data.workers import worker_processes as workers
from hasten.data.workers.hang_limit import Patience
from hasten.errors import DataFailed, Hang, OutOfMemory, UserCodeFailed
from hasten.facts.machine import usable_cores
from support.data.broken_workers import Harmful, Lambdas, as_list, feed_of, nothing_left_behind
from support.data.first_batches import Remembering, Self, copies, looked_at, readers
from support.data.loaders import HERE, ONE_WORKER, Drawing, DrawingStream, columns, flat, loader_of

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

FIRST = Request(0, np.arange(4))


class RememberingStream(Remembering, IterableDataset):
    def __iter__(self):
        return (self[index] for index in range(8))


class Locked(Remembering):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@copies
@pytest.mark.parametrize("data", [Remembering(), RememberingStream(), Locked()], ids=["rows", "stream", "lock"])
def test_nothing_is_read_in_the_training_process(data):
    assert os.getpid() not in readers(data)
    assert data.reads == 0


@pytest.mark.parametrize("data", [Drawing(8), DrawingStream(8), columns(8)], ids=["rows", "stream", "columns"])
@pytest.mark.parametrize("options", [HERE, ONE_WORKER])
def test_it_is_the_batch_that_training_begins_with_and_no_random_number_is_lost(data, options):
    loader = loader_of(data)
    wanted = flat(next(loader.epoch(0)).batch)
    before = torch.get_rng_state()
    assert flat(looked_at(data, options=options)) == wanted
    assert torch.equal(torch.get_rng_state(), before)


@copies
def test_it_needs_no_shared_memory(monkeypatch):
    monkeypatch.setattr(feed, "free_shared_memory", lambda: 0)
    assert os.getpid() not in readers(Remembering())


@copies
def test_what_only_fits_into_shared_memory_and_not_into_this_one_is_read_here(monkeypatch):
    monkeypatch.setattr(feed, "free_shared_memory", lambda: 7)
    batch = looked_at(Remembering(), collate=lambda samples: Self(readers=torch.tensor(samples)))
    assert {*batch["readers"].tolist()} == {os.getpid()}


def test_a_batch_that_cannot_be_sent_is_read_here():
    batch = looked_at(Lambdas(), collate=as_list, options=ONE_WORKER)
    assert [sample["function"]() for sample in batch] == [sample["number"] for sample in batch]


class NotInWorkers(Remembering):
    """As data on an accelerator: a copied process cannot use that."""

    def __getitem__(self, index):
        if get_worker_info() is not None:
            raise RuntimeError("cannot re-initialise the device")
        return super().__getitem__(index)


def test_what_workers_cannot_read_is_read_here():
    assert readers(NotInWorkers(), options=ONE_WORKER) == {os.getpid()}


SHORT, LONG = Patience(seconds=3, first_seconds=3), Patience(seconds=120)


def harmed(harm, options, patience=LONG):
    """The first batch of data that do harm in a worker alone."""
    with nothing_left_behind():
        return next(feed_of(Harmful(harm, bad=0), options, patience=patience).answers_apart([FIRST])).tolist()


@copies
def test_a_worker_that_hangs_is_told_with_the_line_where_it_stands():
    """It hangs in training too; and read here, what hangs everywhere would never be told."""
    with pytest.raises(Hang, match=r"broken_workers\.py:\d+ in circle"):
        harmed("circle", ONE_WORKER, SHORT)


@copies
def test_where_the_job_has_no_workers_what_hangs_in_one_is_read_here_and_this_is_said():
    with pytest.warns(
        RuntimeWarning, match=r"(?s)also where a job has none: .* in circle\n.* read in the training pro"
    ):
        assert harmed("circle", HERE, SHORT) == [0, 1, 2, 3]


def test_a_worker_that_dies_is_told():
    with pytest.raises(DataFailed, match=r"^Job.train: loader worker 0 of 1 \(pid \d+\) was killed by SIGKILL"):
        harmed("kill", ONE_WORKER)


@copies
@pytest.mark.parametrize(
    ("harm", "end"),
    [
        ("crash", "was killed by SIGSEGV"),
        ("kill", "was killed by SIGKILL"),
        ("leave", "ended by itself with exit code 0"),
    ],
)
def test_also_where_the_job_has_no_workers_what_ends_one_is_told(harm, end):
    """Read here, it would end the training process, which then tells nobody."""
    with pytest.raises(DataFailed, match=f"also where a job has none: loader worker 0 of 1 .* {end}") as caught:
        harmed(harm, HERE)
    assert caught.value.where == "Job.train"
    assert "read the same samples under python -X faulthandler" in caught.value.fix


@copies
def test_also_where_the_job_has_no_workers_full_memory_is_full_memory(monkeypatch):
    counts = iter([5, 6])
    monkeypatch.setattr(workers, "killed_for_memory", lambda: next(counts))
    with pytest.raises(OutOfMemory, match=r"has killed 1 process\(es\) for memory") as caught:
        harmed("kill", HERE)
    assert "use a smaller batch_size" in caught.value.fix


def test_what_lives_in_no_copy_of_its_process_is_read_here_where_none_is_made(other_start):
    deadly = DeadlyElsewhere()
    assert readers(deadly) == {os.getpid()}
    assert deadly.reads == 4


NO_MORE_PROCESSES = """
import os, resource
from support.data.first_batches import Remembering, looked_at
looked_at(Remembering())  # loads all that it takes
if os.getuid() == 0:
    os.setuid(65534)  # the superuser has no such limit
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
assert set(looked_at(Remembering()).tolist()) == {os.getpid()}
"""


@copies
def test_where_the_system_starts_no_more_processes_it_is_read_here():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", NO_MORE_PROCESSES],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@copies
def test_where_workers_could_send_nothing_for_the_length_of_a_path_it_is_read_here(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setattr(process_folder, "_mine", None)
    assert readers(Remembering()) == {os.getpid()}


@copies
def test_it_may_take_as_much_longer_as_the_training_reads_a_batch_in_parts(monkeypatch):
    longer, answers = [], workers.Workers.answers

    def noted(started, requests, *, first_takes=1):
        longer.append(first_takes)
        return answers(started, requests, first_takes=first_takes)

    monkeypatch.setattr(workers.Workers, "answers", noted)
    loader = loader_of(Remembering())
    loader.first_batch(takes=7)
    loader.first_batch()
    assert longer == [7, 1]


class Journalled(RememberingStream):
    def __init__(self, journal):
        super().__init__()
        self.journal = journal

    def __getitem__(self, index):
        with open(self.journal, "a") as journal:
            journal.write(f"{index} ")
        return index


@copies
def test_what_a_window_of_a_resumed_stream_takes_of_shared_memory_is_told_by_the_first_one(tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "is_ample", lambda *given: False)
    with nothing_left_behind():
        loader = loader_of(Journalled(tmp_path / "journal"), options=ONE_WORKER)
        assert next(loader.epoch(0, 1)).batch.tolist() == [4, 5, 6, 7]
        loader.close()
    assert (tmp_path / "journal").read_text() == "0 1 2 3 " + "0 1 2 3 4 5 6 7 "


def not_called(worker):
    raise AssertionError("there are no loader workers")


@copies
def test_where_the_job_has_no_workers_no_worker_init_fn_is_called():
    data = DataLoader(Remembering(), batch_size=4, worker_init_fn=not_called)
    assert os.getpid() not in readers(data, batch_size=None)


def test_a_process_that_may_have_no_children_reads_it_itself():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert len({*pool.apply(readers, (Remembering(),))}) == 1


class DeadlyElsewhere(Remembering):
    """As a library that does not survive in a copy of its process."""

    def __init__(self):
        super().__init__()
        self.home = os.getpid()

    def __getitem__(self, index):
        if os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class SteadyElsewhere(DeadlyElsewhere):
    steady_reason = "a sample is the process that reads it"


BY_A_THREAD = LoaderOptions(workers=1, worker_kind="threads")


def test_threads_are_no_worker_processes(other_start):
    assert readers(SteadyElsewhere(), options=BY_A_THREAD) == {os.getpid()}


@copies
def test_what_ends_a_process_that_only_looks_is_told_where_threads_read():
    with nothing_left_behind(), pytest.raises(DataFailed, match="also where a job has none"):
        loader_of(SteadyElsewhere(), options=BY_A_THREAD).first_batch()


class Broken(Remembering):
    def __getitem__(self, index):
        raise ValueError("no such row")


def test_a_sample_that_cannot_be_read_is_told_by_its_own_error():
    with nothing_left_behind(), pytest.raises(UserCodeFailed, match="ValueError: no such row") as caught:
        loader_of(Broken()).first_batch()
    assert isinstance(caught.value.__cause__, ValueError)


def test_where_workers_start_anew_one_reads_it_if_the_run_will_have_workers(other_start):
    assert readers(Remembering()) == {os.getpid()}
    assert os.getpid() not in readers(Remembering(), options=ONE_WORKER)
    assert readers(Locked(), options=ONE_WORKER) == {os.getpid()}


def started(workers):
    source = source_of(Drawing(8), field="train")
    with nothing_left_behind():
        feed = Feed(reader_of(source, 7), source, LoaderOptions(workers=workers))
        assert len([*feed.answers([FIRST])]) == 1
        feed.close()


def warn():
    warnings.warn("said once", UserWarning, stacklevel=1)


def test_few_workers_do_not_have_old_warnings_said_again():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        warn()
        started(1)
        warn()
    assert [str(one.message) for one in said if one.category is UserWarning] == ["said once"]


@pytest.mark.filterwarnings("error")
def test_more_workers_than_cores_are_started_without_a_word_of_torchs():
    started(usable_cores() + 1)
