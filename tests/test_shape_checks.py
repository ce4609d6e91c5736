"""The guards of the shape are put to the test: each planted fault is caught, each innocent neighbour is not."""

from __future__ import annotations

import pytest

import shape
import unsafe
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
        ("src/hasten/report/formatting.py", "import torch; from hasten.techniques import ALL"),
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
        ("src/hasten/facts/job.py", "from hasten.facts.job import Loss"),
        ("src/hasten/facts/job.py", "from .loss import Loss; from . import loss"),
        ("src/hasten/facts/__init__.py", "from .loss import Loss; from . import loss"),
        ("src/hasten/facts/job.py", "import hastened; from torch import nn"),
        ("src/hasten/facts/job.py", "'from hasten.training import step'  # from hasten.training import step"),
        ("src/hasten/tune/search.py", "from hasten.training.step import Step; from hasten.measure import clock"),
        ("src/hasten/cli/tune_command.py", "from hasten.tune import search; import hasten"),
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
        "import pickle\nclass Reader(pickle.Unpickler): ...",
        "from pickle import Unpickler as Base\nclass Reader(Base): ...",
        "import _pickle; _pickle.loads(text)",
        "import pickle; map(pickle.loads, texts)",
        "from functools import partial; import pickle; partial(pickle.load, file)",
        "import marshal; marshal.loads(text)",
        "import shelve; shelve.open(path)",
        "import dill; dill.load(file)",
        "import joblib; joblib.load(path)",
        "import cloudpickle; cloudpickle.loads(text)",
        "import pandas as pd; pd.read_pickle(path)",
        "eval(text)",
        "exec(text)",
        "import builtins; builtins.exec(text)",
        "run = eval",
        "import runpy; runpy.run_path(path)",
        "torch.load(path)",
        "torch.load(path, map_location='cpu', **options)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=trusted)",
        "from torch import load as read; read(path)",
        "from torch.serialization import load; load(path)",
        "import torch; read = torch.load",
        "torch.serialization.add_safe_globals([Thing])",
        "torch.jit.load(path)",
        "import torch.distributed.checkpoint as dcp; dcp.load(state)",
        "import torch.distributed.checkpoint as dcp; dcp.load(state, checkpoint_id=path)",
        "import torch.distributed.checkpoint as dcp; dcp.load(state, storage_reader=reader)",
        "from torch.distributed.checkpoint import FileSystemReader; reader = FileSystemReader(path)",
        "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save as save; save(a, b)",
        "import numpy as np; np.load(path, allow_pickle=True)",
        "import numpy as np; np.load(path, None, True)",
        "numpy.lib.format.read_array(file, allow_pickle=flag)",
        "import multiprocessing.connection as c; c.Client(address)",
        "import yaml; yaml.load(file)",
        "import yaml; yaml.unsafe_load(file)",
        "import yaml; yaml.full_load(file)",
        "from yaml import load_all; load_all(file)",
        "import subprocess; subprocess.getoutput('ls')",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=1)",
        "import os; os.system('ls')",
        "from os import popen; popen('ls')",
        "from contextlib import suppress; suppress(Exception)",
        "import contextlib; contextlib.suppress(OSError, BaseException)",
    ],
)
def test_what_is_unsafe_is_caught(text):
    assert found(unsafe.check_refused, text) == [text.count("\n") + 1]


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
    assert found(unsafe.check_refused, f"try:\n    work()\n{handler}") == ([3] if caught else [])


@pytest.mark.parametrize(
    "text",
    [
        "import json; json.load(file)",
        "import pickle; pickle.Pickler(file).dump(state)",
        "model.eval(); self.exec(text); re.compile(text)",
        "torch.load(path, weights_only=True)",
        "import torch; torch.load(path, map_location='cpu', weights_only=True, mmap=True)",
        "import torch.distributed.checkpoint as dcp; dcp.load(s, storage_reader=dcp.HuggingFaceStorageReader(path))",
        "import numpy as np; np.load(path); np.load(path, mmap_mode='r', allow_pickle=False)",
        "module.load_state_dict(state)",
        "import yaml; yaml.safe_load(file)",
        "subprocess.run(['ls'], shell=False)",
        "import contextlib; contextlib.suppress(FileNotFoundError)",
        "'pickle.load(file)'",
    ],
)
def test_a_safe_call_is_let_through(text):
    assert found(unsafe.check_refused, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "import urllib.request",
        "from urllib import request",
        "from urllib.request import urlopen as get; get(address)",
        "import http.client as client; client.HTTPConnection(host)",
        "import requests",
        "def fetch(): import requests",
        "import ftplib, json",
        "from smtplib import SMTP",
        "from torch import hub",
        "import torch; torch.hub.load(name)",
        "import socket; socket.create_connection(address)",
        "from importlib import import_module; import_module('requests')",
    ],
)
def test_what_goes_out_to_the_network_is_caught(text):
    assert set(found(unsafe.check_network, text)) == {1}


@pytest.mark.parametrize(
    "text",
    [
        "import urllib.parse; from urllib import parse",
        "import socket; socket.socketpair(); socket.gethostname()",
        "import requests_of_workers; answers(requests)",
        "'import requests'",
    ],
)
def test_what_stays_on_the_machine_is_let_through(text):
    assert found(unsafe.check_network, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time; start = time.time()",
        "from time import time; start = time()",
        "from time import time_ns as now; start = now()",
        "import time; Thing(clock=time.time)",
        "import datetime; datetime.datetime.now()",
        "from datetime import datetime; datetime.utcnow()",
        "import datetime as dt; dt.datetime.today()",
        "from datetime import date; date.today()",
    ],
)
def test_a_clock_that_can_be_set_is_caught(text):
    assert found(unsafe.check_calendar, text) == [1]
    assert found(unsafe.check_calendar, text, next(iter(unsafe.MAY_READ_THE_CALENDAR))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time; time.monotonic(); time.perf_counter(); time.thread_time(); time.strftime('%Y', moment)",
        "import datetime; datetime.timedelta(seconds=1); kinds = (datetime.date, datetime.time)",
        "'time.time()'",
    ],
)
def test_a_clock_that_only_goes_on_is_let_through(text):
    assert found(unsafe.check_calendar, text) == []


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
        "import os; os.open(os.devnull, os.O_WRONLY)",
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
