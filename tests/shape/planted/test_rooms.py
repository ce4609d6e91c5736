"""Imports that no room may have, planted in every spelling, and innocent neighbours."""

from __future__ import annotations

import pytest

from shape.planted import found
from shape.rooms import check_circles, check_rooms, check_technique_files
from shape.source import Source


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/hasten/facts/job.py", "from hasten.training import step"),
        ("src/hasten/facts/job.py", "from hasten.training.step import Step"),
        ("src/hasten/facts/job.py", "import hasten"),
        ("src/hasten/facts/job.py", "from ..training import step"),
        ("src/hasten/facts/__init__.py", "from ..training import step"),
        ("src/hasten/facts/job.py", "def build(): from hasten.training.step import Step"),
        ("src/hasten/facts/job.py", "if TYPE_CHECKING: from hasten.training.step import Step"),
        ("src/hasten/facts/job.py", "import importlib; importlib.import_module('hasten.training')"),
        ("src/hasten/techniques/precision.py", "from hasten.measure import clock"),
        ("src/hasten/report/terminal/blocks.py", "import torch; from hasten.techniques import ALL"),
        ("src/hasten/errors.py", "from hasten.facts.job import Job"),
        ("src/hasten/helpers/text.py", "import re"),
        ("src/hasten/utils.py", ""),
    ],
)
def test_an_import_against_the_direction_is_caught(path, text):
    assert found(check_rooms, text, path) == [1]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/hasten/facts/job.py", "from hasten.errors import JobError"),
        ("src/hasten/facts/job.py", "from .loss import Loss; from . import loss"),
        ("src/hasten/facts/job.py", "import hastened; from torch import nn"),
        ("src/hasten/facts/job.py", "'from hasten.training import step'  # from hasten.training import step"),
        ("src/hasten/tuning/search.py", "from hasten.training.step import Step; from hasten.measure import clock"),
        ("src/hasten/cli/tuning/tune_command.py", "from hasten.tuning import search; import hasten"),
        ("src/hasten/__init__.py", "from hasten.training.step import Step"),
    ],
)
def test_an_import_in_the_direction_is_let_through(path, text):
    assert found(check_rooms, text, path) == []


@pytest.mark.parametrize(
    ("path", "text", "caught"),
    [
        ("src/hasten/techniques/compile.py", "from hasten.techniques.precision import autocast", True),
        ("src/hasten/techniques/contract.py", "import hasten.techniques.precision", True),
        ("src/hasten/techniques/precision.py", "from hasten.techniques.contract import Yes", False),
        ("src/hasten/techniques/compile.py", "from hasten.techniques.precision_words import WORDS", False),
        ("src/hasten/techniques/__init__.py", "from hasten.techniques.precision import TECHNIQUE", False),
    ],
)
def test_a_technique_that_knows_another_is_caught(path, text, caught):
    precision = Source("src/hasten/techniques/precision.py", "TECHNIQUE = Technique()")
    assert bool([*check_technique_files(Source(path, text), [precision])]) is caught


def circles(**files: str) -> list[str]:
    """Where circles are reported among these files of the room data."""
    sources = [Source(f"src/hasten/data/{name}.py", text) for name, text in files.items()]
    return [f"{fault.source.path.rpartition('/')[2]}:{fault.line}" for fault in check_circles(sources)]


@pytest.mark.parametrize(
    "back",
    [
        "from hasten.data import feed",
        "from hasten.data.feed import Feed",
        "import hasten.data.feed",
        "if TYPE_CHECKING: from hasten.data.feed import Feed",
        "def later(): from .feed import Feed",
    ],
)
def test_a_circle_of_two_and_one_of_three_files_are_caught(back):
    assert circles(feed="\nfrom hasten.data.queue import Queue", queue=back) == ["feed.py:2"]
    between = "from hasten.data.queue import Queue"
    assert circles(feed="import hasten.data.middle", middle=between, queue=back) == ["feed.py:1"]


def test_imports_that_meet_without_a_circle_are_let_through():
    both = "from hasten.data.queue import Queue; from hasten.data.middle import Middle"
    assert circles(feed=both, middle="from hasten.data.queue import Queue", queue="import torch") == []


def test_two_circles_are_two_faults_and_a_circle_is_one():
    pairs = {"a": "b", "b": "a", "c": "d", "d": "e", "e": "c", "f": "a"}
    assert len(circles(**{name: f"import hasten.data.{other}" for name, other in pairs.items()})) == 2
