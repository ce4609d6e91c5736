"""Weights taken out of a run: nothing is replaced, nothing is left behind, and what cannot be done is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch

from hasten.errors import Misconfigured
from hasten.training.weights.export import export_weights
from support.training.complete_runs import complete_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return complete_run(tmp_path_factory.mktemp("made") / "job-1")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "model.safetensors"


@pytest.mark.parametrize(
    ("named", "instead"),
    [
        ("", "model.safetensors"),
        ("a/..", "a/../model.safetensors"),
    ],
)
def test_an_output_that_names_no_file_is_refused_with_one_that_does(made: Path, named: str, instead: str):
    with pytest.raises(Misconfigured, match="is not a file name") as caught:
        export_weights(made, Path(named))
    assert caught.value.fix == f"write -o {instead}"


def test_the_file_says_that_it_is_of_torch_as_other_readers_ask(made: Path, output: Path):
    export_weights(made, output)
    for path in (output, made / "model.safetensors"):
        with safetensors.safe_open(path, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
