"""`--set NAME=VALUE` for arguments of a job's function, and sys.argv of its file."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hasten.errors import Misconfigured, UserCodeFailed
from hasten.facts.plan import Plan
from hasten.training.setup.job_options import JobOptions, keywords_for, options_of
from hasten.training.setup.load_job import load_job
from hasten.tuning.trials.arms import Arms

JOBS = """
import argparse, sys
from pathlib import Path
from support import small_job

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("file", nargs="?")
args = parser.parse_args()

def job(batch_size=8, names=None):
    assert sys.argv[0] == __file__.rpartition("/")[2]
    return small_job(seed=args.seed, batch_size=batch_size)

def parsing():
    argparse.ArgumentParser().parse_args()
    return job()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs_with_options.py").write_text(JOBS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["hasten", "train", "--seed", "9"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


RATES, DATA = [1], Path("a")


def function(
    lr=0.1,
    layers=2,
    fast=False,
    name="adam",
    decay=None,
    sizes=(1, 2),
    rates=RATES,
    data=DATA,
    how=len,
    *,
    last=1,
    drop: float = 0,
): ...


@pytest.mark.parametrize(
    ("given", "value"),
    [
        *[
            ("lr=1e-3", 1e-3),
            ("lr=2", 2.0),
            ("layers=1_000", 1000),
            ("layers=-3", -3),
            ("last=2", 2),
            ("drop=0.1", 0.1),
        ],
        *[("fast=true", True), ("fast=False", False), ("name=sgd=1", "sgd=1"), ("name=", ""), ("name=3", "3")],
        *[("decay=0.5", 0.5), ("decay=none", None), ("decay=cosine", "cosine"), ("decay=true", True)],
        *[("sizes=[3, 4]", (3, 4)), ("rates=(0.5,)", [0.5]), ("data=b/c", Path("b/c"))],
    ],
)
def test_a_value_is_read_by_the_type_of_the_default(given: str, value: object):
    found = keywords_for(function, options_of([given]).settings, "a.py:function")
    assert found == {given.partition("=")[0]: value}
    assert [type(each) for each in found.values()] == [type(value)]


@pytest.mark.parametrize(
    ("given", "says", "fix"),
    [
        ("lrr=1", 'no argument "lrr" with a default', 'did you mean "lr"?'),
        ("lr=fast", "--set lr=fast: the value is not a number", "write a number, as the default is: --set lr=0.1"),
        ("layers=1.5", "not a whole number", "--set layers=2"),
        ("fast=1", "not true or false", "--set fast=False"),
        ("sizes=3", "not a list", "--set sizes='(1, 2)'"),
        ("sizes=[1", "not a list", "--set sizes='(1, 2)'"),
        ("how=max", "the default is <built-in function len>", "give the argument a default that is a number"),
        ("lr", "--set: is 'lr'", "write NAME=VALUE"),
        ("=3", "--set: is '='", "write NAME=VALUE"),
    ],
)
def test_what_no_argument_can_be_is_refused(given: str, says: str, fix: str):
    with pytest.raises(Misconfigured) as caught:
        keywords_for(function, options_of([given]).settings, "a.py:function")
    assert says in str(caught.value)
    assert fix in caught.value.fix


@pytest.mark.parametrize("plain", [lambda: None, lambda seed: None, lambda seed, /: None], ids=inspect.signature)
def test_an_argument_without_a_default_is_no_option(plain: Callable[..., Any]):
    with pytest.raises(Misconfigured, match=r"a\.py:job, --set") as caught:
        keywords_for(plain, {"seed": "1"}, "a.py:job")
    assert caught.value.fix == "give it one: def job(seed=…)"


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (JobOptions(), ["--set", "lr=1", "--set", "name=a", "--", "-v"]),
        (options_of(["lr=2", "size=3"]), ["--set", "lr=2", "--set", "name=a", "--set", "size=3", "--", "-v"]),
        (options_of([], ["--quick", "x y"]), ["--set", "lr=1", "--set", "name=a", "--", "--quick", "x y"]),
    ],
)
def test_what_is_given_again_replaces_what_was_given_before(later: JobOptions, words: list[str]):
    assert sorted(later.over(options_of(["name=a", "lr=1"], ["-v"])).words) == sorted(words)


def test_a_file_that_parses_sys_argv_gets_what_was_given_for_it():
    assert load_job("jobs_with_options.py:job").seed == 1
    given = load_job("jobs_with_options.py:job", options=options_of(["batch_size=4"], ["--seed", "7"]))
    assert (given.seed, given.batch_size) == (7, 4)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("job", ["--seeds", "7"], "argparse ended with 2 on: --seeds 7"),
        ("job", ["--seed", "x"], "on: --seed x (argument --seed: invalid int value: 'x')"),
        ("parsing", ["--seed", "3"], "argparse ended with 2 on: --seed 3"),
        ("job", ["-h"], "argparse ended with 0 on: -h"),
    ],
)
def test_a_parser_that_refuses_sys_argv_is_named_as_the_cause(name: str, arguments: list[str], says: str):
    with pytest.raises(Misconfigured) as caught:
        load_job(f"jobs_with_options.py:{name}", options=options_of([], arguments))
    assert not isinstance(caught.value, UserCodeFailed)
    assert f"jobs_with_options.py:{name}: it parses sys.argv when it is loaded" in str(caught.value)
    assert says in str(caught.value)
    change = f"change its options behind --: hasten train jobs_with_options.py:{name} -- --lr 0.1"
    assert caught.value.fix == ("leave out --help, which the file has answered" if arguments == ["-h"] else change)


def test_trials_load_the_job_with_the_same_options(folder: Path):
    (folder / "jobs_with_options.py").write_text(
        JOBS.replace("assert", "assert (batch_size, args.seed) == (5, 2)\n    assert")
    )
    given = options_of(["batch_size=5"], ["--seed", "2"])
    with Arms("jobs_with_options.py:job", options=given).start("plain", Plan()) as arm:
        assert arm.window(1).steps == 1
