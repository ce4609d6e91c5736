"""What is left of a training that came to a bad end, and was begun again: no process, no shared memory, no file."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from support.data.broken_workers import SHARED_MEMORY

GONE_SECONDS = 60.0  # a worker whose training was killed looks for it every five seconds

JOBS = """
import os, resource, signal
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __init__(self, harm=None):
        self.harm = harm

    def __len__(self):
        return 120

    def __getitem__(self, index):
        Path("pids", str(os.getpid())).touch()
        if index == 9 and self.harm:
            self.harm()
        return torch.full((1 << 12,), float(index)), torch.tensor(index % 3)

class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, rows):
        return self.head(rows.unflatten(1, (64, 64)).mean(2) / 120)

def job(harm=None, loss=None):
    from hasten import Job
    Path("pids", str(os.getpid())).touch()
    calls = []
    def entropy(model, batch):
        calls.append(1)
        if len(calls) == 3:
            print("it trains", flush=True)
        return functional.cross_entropy(model(batch[0]), batch[1])
    train = DataLoader(Pictures(harm), batch_size=8, num_workers=2, shuffle=False)
    sgd = lambda params: torch.optim.SGD(params, lr=0.1)
    return Job(model=Mean, loss=loss or entropy, optimizer=sgd, train=train, epochs=1 if "calm" in os.environ else 500)

def calm():
    return job()

def killed_worker():
    return job(lambda: os.kill(os.getpid(), signal.SIGKILL))

def crashed_worker():
    return job(lambda: os.kill(os.getpid(), signal.SIGSEGV))

def unreadable_sample():
    return job(lambda: open("no such picture"))

def loss_that(act):
    calls = []
    def loss(model, batch):
        calls.append(1)
        found = functional.cross_entropy(model(batch[0]), batch[1])
        return act(found) if len(calls) >= 6 else found
    return job(loss=loss)

def mistaken_loss():
    return loss_that(lambda loss: loss.no_such_thing)

def infinite_loss():
    return loss_that(lambda loss: loss * torch.inf)

def full_disk():
    def full(loss):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        return loss
    return loss_that(full)
"""


@dataclass(frozen=True)
class Fault:
    """job: a function in JOBS. ends_with: the exit code, as a shell counts it. signals: sent to the training, or to all
    its processes, each after an instant."""

    job: str
    ends_with: int
    signals: tuple[int, ...] = ()
    to_all: bool = False


FAULTS: Mapping[str, Fault] = {
    "the training is killed": Fault("calm", 137, (signal.SIGKILL,)),
    "all its processes are killed": Fault("calm", 137, (signal.SIGKILL,), to_all=True),
    "it is told to end": Fault("calm", 143, (signal.SIGTERM,)),
    "Ctrl-C is pressed twice": Fault("calm", 130, (signal.SIGINT, signal.SIGINT), to_all=True),
    "a worker is killed": Fault("killed_worker", 11),
    "a worker crashes": Fault("crashed_worker", 11),
    "a sample cannot be read": Fault("unreadable_sample", 11),
    "the loss raises": Fault("mistaken_loss", 10),
    "the loss is not finite": Fault("infinite_loss", 13),
    "the disk is full": Fault("full_disk", 15),
}


def check_nothing_is_left(fault: Fault, folder: Path, chance: random.Random) -> None:
    (folder / "faulty_jobs.py").write_text(JOBS)
    for each in ("pids", "temporary"):
        (folder / each).mkdir()
    with started(folder, fault.job, "--save-every", "2") as process:
        ends = os.pidfd_open(process.pid)
        wait_for_third_step(process)
        for number in fault.signals:
            select.select([ends], [], [], chance.uniform(0.3, 1.5))
            (os.killpg if fault.to_all else os.kill)(process.pid, number)
        _, told = process.communicate()
        os.close(ends)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    assert code == fault.ends_with, told
    if signal.SIGKILL not in fault.signals:
        assert not [*(folder / "temporary").iterdir()]
    with started(folder, "calm", "--resume", "--allow-change", "train", "--allow-change", "epochs", calm="") as process:
        _, told = process.communicate()
    assert process.returncode == 0, told
    pids = {int(path.name) for path in (folder / "pids").iterdir()}
    assert len(pids) >= 4  # of the second training none but itself, where the first got through its epochs
    wait_until_gone(pids)
    made = tuple(f"torch_{pid}_" for pid in pids)
    assert not [path.name for path in SHARED_MEMORY.iterdir() if path.name.startswith(made)]
    left = [path.name for path in (folder / "temporary").iterdir()]
    # Python makes a folder for each process that sends descriptors, which nobody can remove where all are killed.
    all_killed = fault.to_all and signal.SIGKILL in fault.signals
    assert not [name for name in left if not (all_killed and name.startswith("pymp-"))]
    assert not list((folder / "run").rglob(".*"))


@pytest.fixture
def home() -> Iterator[Path]:
    """By a name that is short enough for sockets."""
    with TemporaryDirectory(prefix="h-") as folder:
        yield Path(folder)


def started(folder: Path, job: str, *options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hasten", "train", f"faulty_jobs.py:{job}", "--run-dir", "run", *options],
        cwd=folder,
        env=os.environ | environment | {"TMPDIR": str(folder / "temporary"), "TORCHINDUCTOR_CACHE_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_third_step(process: subprocess.Popen[str]) -> None:
    """Or for its end."""
    assert process.stdout is not None
    for line in process.stdout:
        if "it trains" in line:
            return


def wait_until_gone(pids: set[int]) -> None:
    there = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(there, timeout=GONE_SECONDS)
    assert not alive


@pytest.mark.proof
@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="shared memory has no names here")
@pytest.mark.parametrize("turn", range(10))
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_left_of_a_hundred_trainings(fault, turn, home):
    check_nothing_is_left(FAULTS[fault], home, random.Random(f"{fault} {turn}"))
