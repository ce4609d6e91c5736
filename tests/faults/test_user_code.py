"""What the user's own code raises is told with their lines first, the samples, the step and the seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.commands import CONTROL_CODE, jobs_in, ran

pytestmark = [
    pytest.mark.fault("user exception"),
    # Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

JOBS = """
from torch import nn
from torch.utils.data import DataLoader, Dataset
from support import small_job

class Rows(Dataset):
    def __init__(self, bad, error=ValueError("no number")):
        self.rows, self.bad, self.error = list(zip(*small_job().train)), bad, error

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[number_of(index, self)]

def number_of(index, rows):
    if index == rows.bad:
        raise rows.error
    return index

def read_by(workers, data):
    return small_job(train=DataLoader(data, batch_size=8, num_workers=workers), batch_size=None, seed=5)

def here():
    return read_by(0, Rows(21))

def in_a_worker():
    return read_by(1, Rows(21))

def in_an_evaluation():
    return small_job(valid=DataLoader(Rows(21), batch_size=8, num_workers=1))

SECRET = "https://me:hunter2@example.org/x"

def hostile_here():
    return read_by(0, Rows(21, ValueError("\\x1b[2J" + SECRET)))

def hostile_in_a_worker():
    return read_by(1, Rows(21, ValueError("\\x1b[2J" + SECRET)))

class Model(nn.Linear):
    calls = 0

    def forward(self, rows):
        Model.calls += 1
        if Model.calls == 3:
            raise_it()
        return super().forward(rows)

def raise_it():
    raise IndexError("\\x1b[31mtoo far " + SECRET)  # \x1b[2J https://me:hunter2@example.org

def in_the_model():
    Model.calls = 0
    return small_job(model=lambda: Model(6, 3), seed=5)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_in(tmp_path, JOBS, monkeypatch)


def line_of(text: str) -> int:
    return 1 + next(number for number, line in enumerate(JOBS.split("\n")) if text in line)


def shown(job: str, *options: str) -> str:
    code, error = ran("train", f"faulty_jobs.py:{job}", *options)
    assert code == 10
    assert not CONTROL_CODE.search(error)
    assert "hunter2" not in error
    return error


@pytest.mark.parametrize("job", ["here", "in_a_worker"])
def test_a_data_sets_own_lines_come_first_then_the_sample_and_its_seed(job):
    first, second, *rest = [line.strip() for line in shown(job).splitlines() if line.lstrip().startswith("File ")]
    assert first.endswith(f'faulty_jobs.py", line {line_of("return self.rows[number_of")}, in __getitem__')
    assert second.endswith(f'faulty_jobs.py", line {line_of("raise rows.error")}, in number_of')
    assert rest == []


def test_an_evaluations_sample_is_told_with_their_lines_too():
    error = shown("in_an_evaluation")
    assert error.splitlines()[0].endswith("in __getitem__")
    assert "in number_of" in error
    assert "sample 21 of Job.valid could not be read in an evaluation: ValueError: no number" in error


@pytest.mark.parametrize("job", ["hostile_here", "hostile_in_a_worker"])
def test_what_a_terminal_would_obey_and_what_is_secret_is_not_echoed(job):
    assert "[hidden]@example.org" in shown(job)


def test_a_models_exception_is_told_with_its_step_its_samples_and_the_seed():
    error = shown("in_the_model")
    assert error.splitlines()[0].endswith("in forward") or "in raise_it" in error
    assert "IndexError: [31mtoo far https://[hidden]@example.org/x (at optimizer step 3: epoch 1, samples " in error
    assert " of Job.train; seed 5)" in error
    assert "step 2 is saved and verified" in error
