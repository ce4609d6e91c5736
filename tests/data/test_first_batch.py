"""A batch that is only looked at is read by a process that ends with it, and is the batch that training begins with."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from broken_workers import Harmful, Lambdas, as_list, feed_of, nothing_left_behind
from hasten.data import feed, watch
from hasten.data.feed import Feed
from hasten.data.options import LoaderOptions
from hasten.data.reading import Request, reader_of
from hasten.data.sources import source_of
from hasten.data.watch import Patience
from hasten.errors import DataFailed, Hang, OutOfMemory, UserCodeFailed
from hasten.facts.machine import usable_cores
from loading import HERE, ONE_WORKER, Drawing, DrawingStream, columns, flat, loader_of

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
copies = pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="workers do not start as copies here")

FIRST = Request(0, np.arange(4))


class Remembering:
    """Each sample is the process that reads it; the object remembers how many it was asked for."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.reads += 1
        return os.getpid()


class RememberingStream(Remembering, IterableDataset):
    def __iter__(self):
        return (self[index] for index in range(8))


class Locked(Remembering):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def looked_at(data, **arguments):
    with nothing_left_behind():
        loader = loader_of(data, **arguments)
        batch = loader.first_batch()
        loader.close()
    return batch


def readers(data, **arguments):
    """The processes that have read the first batch."""
    return {*looked_at(data, **arguments).tolist()}


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


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


@dataclass(frozen=True, slots=True)
class Framed:
    mask: torch.Tensor


class Self(dict):
    """Moves itself, as a tokenizer's encoding does."""

    def to(self, device):
        return self


def every_form(samples):
    half = torch.tensor([1.5, -2], dtype=torch.bfloat16)
    return {
        "pair": Pair(half, torch.tensor(3)),
        "framed": Framed(torch.tensor([[True, False]])),
        "empty": torch.empty(0, 3),
        "complex": torch.tensor([1 + 2j]),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "spread": torch.arange(3.0).expand(2, 3),
        "conjugate": torch.tensor([1 + 2j, 3]).conj(),  # torch only marks its values as such
        "negated": torch.tensor([1 + 2j]).conj().imag,
        "single": torch.arange(6.0).reshape(2, 3)[:1, 1],
        "self": Self(ids=torch.arange(3)),
        "own": torch.nn.Parameter(torch.tensor([0.5])),  # of a class of its own
        "words": ["a", b"b", None],
    }


@copies
def test_every_form_of_a_batch_arrives_as_it_was(monkeypatch):
    monkeypatch.setattr(feed, "read_here", None)  # all of them do arrive
    found, wanted = looked_at([0] * 8, collate=every_form), every_form([])
    assert found.keys() == wanted.keys()
    assert type(found["pair"]) is Pair
    for one, other in [
        (found["pair"].one, wanted["pair"].one),
        (found["pair"].other, wanted["pair"].other),
        (found["framed"].mask, wanted["framed"].mask),
        *(
            (found[name], wanted[name])
            for name in ("empty", "complex", "turned", "spread", "conjugate", "negated", "single")
        ),
        (found["self"]["ids"], wanted["self"]["ids"]),
        (found["own"], wanted["own"]),
    ]:
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert found["turned"].stride() == (1, 3)
    assert type(found["self"]) is Self
    assert type(found["own"]) is torch.nn.Parameter
    assert found["words"] == wanted["words"]


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


SHORT, LONG = Patience(seconds=0.4, first_seconds=0.4), Patience(seconds=120)


def harmed(harm, options, patience=LONG):
    """The first batch of data that do harm in a worker alone."""
    with nothing_left_behind():
        return next(feed_of(Harmful(harm, bad=0), options, patience=patience).answers_apart([FIRST])).tolist()


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
    monkeypatch.setattr(watch, "killed_for_memory", lambda: next(counts))
    with pytest.raises(OutOfMemory, match=r"has killed 1 process\(es\) for memory") as caught:
        harmed("kill", HERE)
    assert "use a smaller batch_size" in caught.value.fix


def test_what_lives_in_no_copy_of_its_process_is_read_here_where_none_is_made(other_start):
    deadly = DeadlyElsewhere()
    assert readers(deadly) == {os.getpid()}
    assert deadly.reads == 4


NO_MORE_PROCESSES = """
import os, resource
from test_first_batch import Remembering, looked_at
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
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


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
