"""Weights taken out of a run: nothing is replaced, nothing is left behind, and what cannot be done is said."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import safetensors.torch

from hasten.checkpoint.store import Checkpoint
from hasten.errors import Misconfigured, StorageFailed
from hasten.training.weights.export import export_weights
from support.training.complete_runs import checkpoints_of, complete_run

TENSORS = "tensors.safetensors"
PRECIOUS = b"it took days"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return complete_run(tmp_path_factory.mktemp("made") / "job-1")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "job-1"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "model.safetensors"


def test_a_file_that_appears_while_the_weights_are_written_stays(made: Path, output: Path, monkeypatch):
    force = os.fsync

    def planted(descriptor: int) -> None:
        if output.name in os.readlink(f"/proc/self/fd/{descriptor}"):
            output.write_bytes(PRECIOUS)
        force(descriptor)

    monkeypatch.setattr(os, "fsync", planted)
    with pytest.raises(Misconfigured, match="exists already"):
        export_weights(made, output)
    assert output.read_bytes() == PRECIOUS
    assert os.listdir(output.parent) == [output.name]


@pytest.mark.parametrize(
    ("named", "instead"),
    [
        ("", "model.safetensors"),
        ("a/..", "a/../model.safetensors"),
    ],
)
def test_an_output_that_names_no_file_is_refused_with_one_that_does(made: Path, named: str, instead: str):
    with pytest.raises(Misconfigured, match="names no file") as caught:
        export_weights(made, Path(named))
    assert caught.value.fix == f"write -o {instead}"


def test_of_many_steps_the_first_few_are_named_and_how_many_more_there_are(run: Path, output: Path):
    for step in range(11, 18):
        shutil.copytree(run / "checkpoints" / "step-10", run / "checkpoints" / f"step-{step}")
    with pytest.raises(Misconfigured, match=r"those of step 17, 16, 15, 14, 13, 12, 11, 10 and 2 more\n"):
        export_weights(run, output, 7)


def test_checkpoints_that_the_run_removes_meanwhile_are_no_damaged_ones(run: Path, output: Path, monkeypatch):
    def removed(checkpoint: Checkpoint) -> None:
        shutil.rmtree(checkpoint.path)
        raise StorageFailed("state.json could not be read: No such file or directory")

    newest = checkpoints_of(run)[0]
    read = Checkpoint.read
    monkeypatch.setattr(Checkpoint, "read", lambda each: removed(each) if each.step == newest.step else read(each))
    assert export_weights(run, output).damaged == ()
    monkeypatch.setattr(Checkpoint, "read", removed)
    with pytest.raises(StorageFailed, match="the run removed them while they were read") as caught:
        export_weights(run, output.with_name("other.safetensors"))
    assert caught.value.fix == "run it again"


def test_the_file_says_that_it_is_of_torch_as_other_readers_ask(made: Path, output: Path):
    export_weights(made, output)
    for path in (output, made / "model.safetensors"):
        with safetensors.safe_open(path, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
