"""Which words of a command are hasten's, and which are the script's."""

from __future__ import annotations

import pytest

from hasten.cli.tuning.script_subject import command_of
from hasten.cli.tuning.script_words import split_at_script
from hasten.errors import Misconfigured


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


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("tune --seconds 9 --epochs 13 train.py -v", "hasten tune --seconds 9 train.py --epochs 13 -v"),
        ("run --plan p.toml --lr=3 train.py", "hasten run --plan p.toml train.py --lr=3"),
        ("run --lr 3 --quiet train.py", "hasten run train.py --lr 3 --quiet"),
    ],
)
def test_options_of_the_script_before_it_are_refused_with_the_right_command(words, right):
    with pytest.raises(Misconfigured) as refused:
        split_at_script(words.split())
    assert refused.value.fix.endswith(f": {right}")


@pytest.mark.parametrize(
    "words",
    [
        "tune --second 9 train.py",
        "tune job.py:job -- --lr 3 x.py",
        "tune --help train.py",
        "run --plan= train.py",
        "run --config cfg.py train.py",
    ],
)
def test_other_words_before_a_script_are_left_to_the_command(words):
    split_at_script(words.split())


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_behind_a_script_is_that_of_the_command_unless_that_runs_it(option):
    assert split_at_script(["tune", "train.py", "-x", option]) == (["tune", option], [])
    assert split_at_script(["doctor", "--run", "train.py", option]) == (["doctor", option], [])
    assert split_at_script(["run", "train.py", option]) == (["run", "train.py"], [option])
