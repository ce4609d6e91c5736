"""sys.exit() in the job's own code is a failure of that code: what, where, the step that is saved and how to resume."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hasten
from faults.commands import jobs_in, ran
from hasten.facts.events import Saved
from support import small_job
from support.training.collected_events import Collected

pytestmark = [
    pytest.mark.fault("user exception"),
    # Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

JOBS = """
import sys
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from support import small_job

ROWS = list(zip(*small_job().train))
end = lambda: sys.exit(0)

def in_the_loss():
    calls = []
    def loss(model, batch):
        calls.append(1)
        if len(calls) == 4:
            end()
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
    return small_job(loss=loss)

class Rows(Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        if index == 31:
            end()
        return ROWS[index]

class Batches(Rows):
    def __getitems__(self, indices):
        return [self[index] for index in indices]

class Stream(IterableDataset):
    def __iter__(self):
        return map(Rows().__getitem__, range(len(ROWS)))

def loaded(data, workers=0, **job):
    return small_job(train=DataLoader(data, batch_size=8, num_workers=workers), batch_size=None, **job)

def in_a_data_set():
    return loaded(Rows())

def in_a_data_set_of_a_worker():
    return loaded(Rows(), workers=1)

def in_a_data_set_that_reads_batches():
    return loaded(Batches())

def in_a_stream_of_a_worker():
    return loaded(Stream(), workers=1, max_steps=5, epochs=None)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_in(tmp_path, JOBS, monkeypatch)


def with_proofs(values: Sequence[str], often: Sequence[str]) -> list[Any]:
    """Those that are tried in each run of the tests, and the others for the proofs."""
    return [each if each in often else pytest.param(each, marks=pytest.mark.proof) for each in values]


READS = ["in_a_data_set_of_a_worker", "in_a_data_set_that_reads_batches", "in_a_stream_of_a_worker"]


@pytest.mark.parametrize("job", with_proofs(READS, ["in_a_stream_of_a_worker"]))
def test_an_exit_in_a_data_set_is_its_failure_at_its_line_and_the_last_step_is_saved(job: str):
    """However it is read; test_whose_fault.py has an exit in each function of a job."""
    code, error = ran("train", f"faulty_jobs.py:{job}", "--run-dir", "run")
    assert code == 10
    assert "SystemExit: 0" in error
    assert f'faulty_jobs.py", line {JOBS[: JOBS.index("sys.exit(0)")].count(chr(10)) + 1}, in <lambda>' in error
    last = " ".join(error.rpartition("\n  ended ")[2].split())
    saved = int(last.partition(" is saved and verified")[0].rpartition(" ")[2])
    assert saved == 3 if "stream" in job else saved >= 1
    assert last.endswith(f"next hasten train faulty_jobs.py:{job} --resume --run-dir run")


def test_the_step_and_its_samples_are_said():
    _, error = ran("train", "faulty_jobs.py:in_the_loss", "--run-dir", "run")
    assert "SystemExit: 0 (at optimizer step 4: epoch 1, samples " in error
    assert "step 3 is saved and verified" in error


@pytest.mark.parametrize("job", with_proofs(["in_a_data_set", "in_a_data_set_of_a_worker"], ["in_a_data_set"]))
def test_the_sample_is_said_and_never_replaced(job: str, tmp_path: Path):
    _, error = ran("train", f"faulty_jobs.py:{job}")
    assert "sample 31 of Job.train could not be read in epoch 1: SystemExit: 0" in error
    text = f"""
from dataclasses import replace
import faulty_jobs

def job():
    return replace(faulty_jobs.{job}(), on_bad_sample="replace")
"""
    (tmp_path / "replacing.py").write_text(text)
    code, error = ran("train", "replacing.py:job")
    assert code == 10
    assert "sample 31 of Job.train could not be read" in error


EXITS = {
    "sys.exit()": "SystemExit",
    "sys.exit(3)": "SystemExit: 3",
    "sys.exit('loss is NaN')": "SystemExit: loss is NaN",
    "raise SystemExit": "SystemExit",
    "raise SystemExit(0)": "SystemExit: 0",
    "quit()": "SystemExit: None",
    "exit(3)": "SystemExit: 3",
    "raise GeneratorExit": "GeneratorExit",
    "raise type('Stop', (BaseException,), {})('now')": "Stop: now",
}


@pytest.mark.parametrize(
    "statement", with_proofs([*EXITS], ["sys.exit('loss is NaN')", "quit()", "raise GeneratorExit"])
)
def test_however_it_exits(statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ends = f"def end():\n    {statement}\n"
    jobs_in(tmp_path, JOBS.replace("end = lambda: sys.exit(0)\n", ends), monkeypatch)
    code, error = ran("train", "faulty_jobs.py:in_the_loss", "--run-dir", "run")
    assert code == 10
    assert f"in end: {EXITS[statement]} " in error.replace("\n", " ") + " "
    assert "step 3 is saved and verified" in error


CLICK = """
import click
@click.command()
@click.argument("lr", {})
def main(lr): ...
main()
"""


@pytest.mark.parametrize(
    ("text", "exit_code", "words"),
    [
        ("import sys\nsys.exit(0)\n", 10, "faulty_jobs.py:2, in <module>: SystemExit"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--lr'])\n", 2, "give its options behind --"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--help'])\n", 2, "give its options behind --"),
        ("import sys\nif sys.argv[1:] == []:\n    sys.exit('usage')\n", 10, "with sys.argv[1:]: no arguments"),
        (
            CLICK.format("default=1"),
            10,
            "faulty_jobs.py:6, in <module>: SystemExit: 0, which ended the file while it was",
        ),
        (CLICK.format("required=True"), 10, "or give its options behind --: hasten train faulty_jobs.py:job"),
    ],
    ids=["exit", "argparse", "argparse help", "of its own", "click", "click refuses"],
)
def test_a_file_that_exits_while_it_is_loaded_is_a_failure_that_says_why(
    text: str, exit_code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    jobs_in(tmp_path, text, monkeypatch)
    code, error = ran("train", "faulty_jobs.py:job")
    assert code == exit_code
    assert words in error


@pytest.mark.parametrize(("command", "job"), [("profile", "model_exits_at_first"), ("schedule", "rate_exits_later")])
def test_other_commands_fail_too(command: str, job: str):
    code, error = ran(command, f"support.faults.wrong_jobs:{job}")
    assert code == 10
    assert "SystemExit: 0" in error


def test_from_python_the_exit_passes_unchanged_once_the_last_complete_step_is_saved(tmp_path: Path):
    raised, calls, events = SystemExit("enough"), list[int](), Collected()

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 4:
            raise raised
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(SystemExit) as caught:
        hasten.train(small_job(loss=loss), run_dir=tmp_path / "run", receivers=[events])
    assert caught.value is raised
    assert [each.step for each in events.events if isinstance(each, Saved)][-1] == 3
