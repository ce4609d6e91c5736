"""Which words of a command are hasten's, and which are the script's."""

from __future__ import annotations

import pytest

from hasten.cli.tuning.script_subject import command_of
from hasten.cli.tuning.script_words import split_at_script


@pytest.mark.parametrize("name", ["train.py", "train.ipynb", "torchrun"])  # a console script that torch brings
def test_what_follows_a_script_is_its_own(name):
    words = ["tune", "--seconds", "9", name, "--seconds", "3"]
    assert split_at_script(words) == (["tune", "--seconds", "9", name], ["--seconds", "3"])


@pytest.mark.parametrize("name", ["digits.py:job", "no-such-command"])
def test_a_job_is_no_script(name):
    assert split_at_script(["tune", name, "--seconds", "3"]) is None


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("train.py", "python train.py -x"),
        ("-m pack.train", "python -m pack.train -x"),
        ("train.ipynb", "hasten run train.ipynb -x"),
        ("torchrun", "torchrun -x"),
    ],
)
def test_the_command_that_runs_it_without_a_plan(name, command):
    assert command_of(name, ["-x"]) == command
