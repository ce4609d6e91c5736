"""Each kind of failure ends `hasten train` with its own exit code, and with one line that says how to go on."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from faults.commands import jobs_in, ran
from hasten.data.loading import batch_feed as feed
from hasten.data.workers.hang_limit import Patience
from support.data.broken_workers import nothing_left_behind

TESTS = Path(__file__).resolve().parents[1]

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

JOBS = """
import math
from torch import nn
from torch.utils.data import DataLoader, Dataset
from support.data.broken_workers import circle
from support import small_job

class Rows(Dataset):
    def __init__(self, at_its_row):
        self.rows, self.at_its_row = list(zip(*small_job().train)), at_its_row

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index == 21:
            self.at_its_row()
        return self.rows[index]

def unreadable():
    raise OSError("cannot read 21.jpg")

def no_memory():
    raise MemoryError("no room")

def read_by(workers, at_its_row, **changes):
    data = DataLoader(Rows(at_its_row), batch_size=8, num_workers=workers)
    return small_job(train=data, batch_size=None, epochs=1, **changes)

def bad_sample():
    return read_by(0, unreadable)

def bad_sample_in_a_worker():
    return read_by(1, unreadable)

def hanging():
    return read_by(1, circle)

def full():
    return read_by(0, no_memory)

def spoilt(model, batch):
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return loss * math.nan if (batch[0] == small_job().train[0][21]).all(1).any() else loss

def not_finite():
    return small_job(loss=spoilt, shuffle=False)

def mistaken():
    return small_job(loss=lambda model, batch: batch["label"])

def misconfigured():
    return small_job(epochs=0)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_in(tmp_path, JOBS, monkeypatch)


@pytest.mark.parametrize(
    ("job", "code", "says"),
    [
        ("misconfigured", 2, "Job.epochs: is 0"),
        ("mistaken", 10, "TypeError: "),
        pytest.param("bad_sample", 11, "sample 21 of Job.train", marks=pytest.mark.fault("corrupt sample")),
        pytest.param("bad_sample_in_a_worker", 11, "OSError: cannot", marks=pytest.mark.fault("corrupt sample")),
        ("full", 12, "sample 21 of Job.train"),
        pytest.param(
            "not_finite",
            13,
            "optimizer step 3 (epoch 1, samples 16 to 23 of Job.train): the loss is nan, and a gradient of weight is ",
            marks=pytest.mark.fault("NaN/Inf loss, gradient, norm"),
        ),
        pytest.param("hanging", 14, "in circle", marks=pytest.mark.fault("worker hangs")),
    ],
)
def test_a_failure_ends_a_training_with_its_exit_code_and_the_way_on(job, code, says, monkeypatch):
    monkeypatch.setattr(feed, "Patience", partial(Patience, seconds=0.5, first_seconds=20, batches=1))
    with nothing_left_behind():
        ended, error = ran("train", f"faulty_jobs.py:{job}")
    assert ended == code
    assert says in error
    if code != 2:
        assert "\n  ended     by " in error
        last = error.strip().splitlines()[-1]
        assert last == f"  next      hasten train faulty_jobs.py:{job} --resume --run-dir runs/{job}-1"


# ── a folder that cannot be written ─────────────────────────────────────────────────────────────────────────────────

# Not judged by the time that it takes, which a loaded machine decides: what takes more than a moment is never begun.
IMPORTED = "raise SystemExit('the job was imported')"
PROGRAM = """
import atexit, sys
atexit.register(lambda: print("loaded:", *{"torch", "numpy", "faulty_jobs"} & set(sys.modules), file=sys.stderr))
from hasten.cli import main
main()
"""


def apart(folder: Path, *before: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """`hasten train` in a process of its own, started in that folder."""
    command = [*before, sys.executable, "-c", PROGRAM, "train", "faulty_jobs.py:job", *options]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment, timeout=150
    )


def folder_with_a_job(folder: Path) -> Path:
    folder.mkdir()
    (folder / "faulty_jobs.py").write_text(IMPORTED)
    return folder


def assert_refused(done: subprocess.CompletedProcess[str], reason: int) -> None:
    assert done.returncode == 15, done.stderr
    assert os.strerror(reason) in done.stderr
    assert done.stderr.splitlines()[-1] == "loaded:"


def test_a_run_folder_that_is_a_file_is_refused_before_torch_or_the_job_is_imported(tmp_path):
    folder = folder_with_a_job(tmp_path / "here")
    assert_refused(apart(folder, options=["--run-dir", "faulty_jobs.py"]), errno.EEXIST)


@pytest.mark.proof
@pytest.mark.fault("output read-only or denied")
def test_a_folder_without_permission_is_refused_before_the_job_is_imported(tmp_path):
    folder = folder_with_a_job(tmp_path / "closed")
    folder.chmod(0o555)
    bounds = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override")
    if bounds and (not shutil.which("setpriv") or subprocess.run([*bounds, "true"], check=False).returncode):
        pytest.skip("to root no folder is closed")
    assert_refused(apart(folder, *bounds), errno.EACCES)


@pytest.mark.proof
@pytest.mark.fault("output read-only or denied")
def test_a_disk_that_is_mounted_read_only_is_refused_before_the_job_is_imported(tmp_path):
    folder = folder_with_a_job(tmp_path / "disk")
    alone = ["unshare", "--mount", "--map-root-user"]
    mounted = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && '
    tried = [*alone, "sh", "-c", mounted + "true", str(folder)]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    assert_refused(apart(folder, *alone, "sh", "-c", mounted + 'exec "$@"', str(folder)), errno.EROFS)


@pytest.mark.fault("output read-only or denied")
def test_a_run_folder_that_cannot_be_written_is_refused_before_the_job_is_imported(tmp_path, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    (tmp_path / "faulty_jobs.py").write_text(IMPORTED)
    monkeypatch.setattr("hasten.checkpoint.files.os.mkdir", refused)
    code, error = ran("train", "faulty_jobs.py:job")
    assert code == 15
    assert "the job was imported" not in error
