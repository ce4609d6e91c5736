"""The guards of the shape are put to the test: each planted fault is caught, each innocent neighbour is not."""

from __future__ import annotations

import pytest

import shape
from shape import Source

STEP = "src/hasten/training/step.py"


def found(check, text, path=STEP):
    return [fault.line for fault in check(Source(path, text))]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/hasten/facts/job.py", "from hasten.training import step"),
        ("src/hasten/facts/job.py", "from hasten.training.step import Step"),
        ("src/hasten/facts/job.py", "import hasten.training.step"),
        ("src/hasten/facts/job.py", "import hasten"),
        ("src/hasten/facts/job.py", "from hasten import training"),
        ("src/hasten/facts/job.py", "from ..training import step"),
        ("src/hasten/facts/job.py", "from .. import training"),
        ("src/hasten/facts/__init__.py", "from ..training import step"),
        ("src/hasten/facts/job.py", "def build(): from hasten.training.step import Step"),
        ("src/hasten/facts/job.py", "if TYPE_CHECKING: from hasten.training.step import Step"),
        ("src/hasten/facts/job.py", "import importlib; importlib.import_module('hasten.training')"),
        ("src/hasten/facts/job.py", "from importlib import import_module as load; load('hasten.training')"),
        ("src/hasten/techniques/precision.py", "from hasten.measure import clock"),
        ("src/hasten/measure/clock.py", "from hasten.techniques import ALL"),
        ("src/hasten/training/step.py", "from hasten.tune import trial"),
        ("src/hasten/report/terminal.py", "import torch; from hasten.techniques import ALL"),
        ("src/hasten/errors.py", "from hasten.facts.job import Job"),
        ("src/hasten/helpers/text.py", "import re"),
        ("src/hasten/utils.py", ""),
    ],
)
def test_an_import_against_the_direction_is_caught(path, text):
    assert found(shape.check_rooms, text, path) == [1]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/hasten/facts/job.py", "from hasten.errors import JobError"),
        ("src/hasten/facts/job.py", "from hasten.facts.loss import Loss"),
        ("src/hasten/facts/job.py", "from .loss import Loss; from . import loss"),
        ("src/hasten/facts/__init__.py", "from .loss import Loss; from . import loss"),
        ("src/hasten/facts/job.py", "import hastened; from torch import nn"),
        ("src/hasten/facts/job.py", "'from hasten.training import step'  # from hasten.training import step"),
        ("src/hasten/tune/search.py", "from hasten.training.step import Step; from hasten.measure import clock"),
        ("src/hasten/cli/tuning.py", "from hasten.tune import search; import hasten"),
        ("src/hasten/__init__.py", "from hasten.training.step import Step"),
    ],
)
def test_an_import_in_the_direction_is_let_through(path, text):
    assert found(shape.check_rooms, text, path) == []


@pytest.mark.parametrize(
    ("path", "text", "caught"),
    [
        ("src/hasten/techniques/compile.py", "from hasten.techniques import precision", True),
        ("src/hasten/techniques/compile.py", "from hasten.techniques.precision import autocast", True),
        ("src/hasten/techniques/compile.py", "def later(): from .precision import autocast", True),
        ("src/hasten/techniques/contract.py", "import hasten.techniques.precision", True),
        ("src/hasten/techniques/precision.py", "from hasten.techniques.contract import Yes", False),
        ("src/hasten/techniques/compile.py", "from hasten.techniques.precision_words import WORDS", False),
        ("src/hasten/techniques/__init__.py", "from hasten.techniques.precision import TECHNIQUE", False),
    ],
)
def test_a_technique_that_knows_another_is_caught(path, text, caught):
    precision = Source("src/hasten/techniques/precision.py", "TECHNIQUE = Technique()")
    assert bool([*shape.check_technique_files(Source(path, text), [precision])]) is caught


@pytest.mark.parametrize("text", ["TECHNIQUE = Technique()", "TECHNIQUE: Technique = Technique()"])
def test_a_technique_is_known_by_its_record(text):
    assert Source("src/hasten/techniques/precision.py", text).is_technique
    assert not Source("src/hasten/training/step.py", text).is_technique
    assert not Source("src/hasten/techniques/precision.py", "def f():\n    TECHNIQUE = 1").is_technique


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("src/hasten/training/step.py", 400),
        ("src/hasten/techniques/precision.py", 150),
        ("src/hasten/doctor/rules/slow_copy.py", 150),
        ("tests/test_step.py", 400),
    ],
)
def test_a_file_over_its_budget_is_caught(path, allowed):
    text = "TECHNIQUE = 1\n" + "x = 1\n" * (allowed - 1)
    assert found(shape.check_budgets, text, path) == []
    assert found(shape.check_budgets, text + "x = 1\n", path) == [allowed + 1]


def test_a_function_longer_than_a_screen_is_caught():
    body = "    x = 1\n" * 59
    assert found(shape.check_budgets, "def short():\n" + body) == []
    assert found(shape.check_budgets, "def long():\n" + body + "    x = 1\n") == [1]
    assert found(shape.check_budgets, "class C:\n async def long():\n" + body + "    x = 1\n") == [2]


def test_a_module_without_a_docstring_is_caught():
    assert found(shape.check_docstring, "x = 1\n'not a docstring'") == [1]
    assert found(shape.check_docstring, '"""  """') == [1]
    assert found(shape.check_docstring, "") == [1]
    assert found(shape.check_docstring, '"""What it is for."""') == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle; pickle.load(file)",
        "import pickle as p; p.loads(text)",
        "from pickle import load as read; read(file)",
        "from pickle import Unpickler; Unpickler(file)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=trusted)",
        "import yaml; yaml.load(file)",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=1)",
        "import os; os.system('ls')",
        "from os import popen; popen('ls')",
        "from contextlib import suppress; suppress(Exception)",
        "import contextlib; contextlib.suppress(OSError, BaseException)",
    ],
)
def test_an_unsafe_call_is_caught(text):
    assert found(shape.check_refused, text) == [1]


@pytest.mark.parametrize(
    ("handler", "caught"),
    [
        ("except: raise", True),
        ("except: pass", True),
        ("except Exception: pass", True),
        ("except BaseException: ...", True),
        ("except (OSError, Exception): pass", True),
        ("except Exception as error: 'nothing to do'", True),
        ("except builtins.Exception: pass", True),
        ("except OSError: pass", False),
        ("except Exception as error: raise Refused(str(error)) from error", False),
    ],
)
def test_a_swallowed_error_is_caught(handler, caught):
    assert found(shape.check_refused, f"try:\n    work()\n{handler}") == ([3] if caught else [])


@pytest.mark.parametrize(
    "text",
    [
        "import json; json.load(file)",
        "torch.load(path, weights_only=True)",
        "import yaml; yaml.safe_load(file)",
        "subprocess.run(['ls'], shell=False)",
        "import contextlib; contextlib.suppress(FileNotFoundError)",
        "'pickle.load(file)'",
    ],
)
def test_a_safe_call_is_let_through(text):
    assert found(shape.check_refused, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "open(path, 'w')",
        "open(path, mode='ab')",
        "open(path, 'x')",
        "open(path, 'r+')",
        "open(path, mode)",
        "import io; io.open(path, 'wb')",
        "import builtins; builtins.open(path, 'w')",
        "path.open('w')",
        "path.open(mode='a')",
        "import tarfile; tarfile.open(path, 'w|gz')",
        "Path(place).write_text('text')",
        "(folder / 'plan.toml').write_bytes(b'text')",
        "path.mkdir(parents=True)",
        "import os; os.open(path, flags)",
        "import os; os.open(path, os.O_RDONLY | flags)",
        "import os; os.open(path, os.O_RDONLY | os.O_CREAT)",
        "import os; os.open(path, os.O_RDONLY | getattr(os, 'O_CREAT', 0))",
        "import os; os.open(path, os.O_RDONLY, 0o600)",
        "import os as system; system.replace(a, b)",
        "from os import unlink; unlink(path)",
        "import shutil; shutil.rmtree(path)",
        "import tempfile; tempfile.mkstemp()",
        "import torch; torch.save(state, path)",
        "import numpy as np; np.save(path, rows)",
        "from safetensors.torch import save_file; save_file(tensors, path)",
    ],
)
def test_a_write_outside_the_door_is_caught(text):
    assert found(shape.check_writes, text) == [1]
    assert found(shape.check_writes, text, shape.ONLY_DOOR_TO_DISK) == []


@pytest.mark.parametrize(
    "text",
    [
        "open(path)",
        "open(path, 'rb')",
        "open(path, encoding='utf-8', mode='r')",
        "path.open()",
        "path.open('rb')",
        "import os; os.open(path, os.O_RDONLY | os.O_NONBLOCK)",
        "import os; os.open(path, os.O_RDONLY | getattr(os, 'O_BINARY', 0))",
        "Image.open('photo.jpg')",
        "path.read_text()",
        "text.replace('a', 'b')",
        "import dataclasses; dataclasses.replace(plan, schema=2)",
        "import tempfile; tempfile.TemporaryDirectory()",
        "import os; os.path.exists(path)",
    ],
)
def test_reading_is_free_to_all(text):
    assert found(shape.check_writes, text) == []


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("import time; time.sleep(1)", True),
        ("from time import sleep as wait; wait(1)", True),
        ("import asyncio; asyncio.sleep(1)", True),
        ("import time; time.perf_counter()", False),
        ("'time.sleep(1)'", False),
    ],
)
def test_a_sleep_is_caught(text, caught):
    assert bool(found(shape.check_sleeps, text, "tests/test_step.py")) is caught


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("@pytest.mark.trap(7)\ndef test_sums(): ...", {7}),
        ("@pytest.mark.trap(7)\n@pytest.mark.trap(8)\ndef test_sums(): ...", {7, 8}),
        ("@pytest.mark.trap(7)\nclass TestSums: ...", {7}),
        ("pytestmark = [pytest.mark.gpu, pytest.mark.trap(7)]", {7}),
        ("@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.trap(7))])\ndef test_sums(n): ...", {7}),
        ("from pytest import mark\n@mark.trap(7)\ndef test_sums(): ...", {7}),
        ("@pytest.mark.trap(7)\ndef helper(): ...", set()),
        ("# pytest.mark.trap(7)\ndef test_sums(): 'pytest.mark.trap(7)'", set()),
        ("@pytest.mark.timeout(7)\ndef test_sums(): ...", set()),
    ],
)
def test_the_traps_of_a_file_are_those_its_tests_are_tagged_with(text, numbers):
    assert shape.traps(Source("tests/test_step.py", text)) == numbers
