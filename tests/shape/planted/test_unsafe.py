"""Unsafe code, planted in every spelling, and innocent neighbours."""

from __future__ import annotations

import pytest

from shape import unsafe
from shape.planted import found


def test_what_is_unsafe_is_caught():
    for text in [
        "import pickle; pickle.load(file)",
        "from pickle import load as read; read(file)",
        "from pickle import Unpickler; Unpickler(file)",
        "import pickle\nclass Reader(pickle.Unpickler): ...",
        "from pickle import Unpickler as Base\nclass Reader(Base): ...",
        "import pickle; map(pickle.loads, texts)",
        "import marshal; marshal.loads(text)",
        "import dill; dill.load(file)",
        "import pandas as pd; pd.read_pickle(path)",
        "eval(text)",
        "import builtins; builtins.exec(text)",
        "run = eval",
        "import runpy; runpy.run_path(path)",
        "torch.load(path)",
        "torch.load(path, map_location='cpu', **options)",
        "torch.load(path, weights_only=False)",
        "from torch import load as read; read(path)",
        "import torch; read = torch.load",
        "torch.serialization.add_safe_globals([Thing])",
        "torch.jit.load(path)",
        "import torch.distributed.checkpoint as dcp; dcp.load(state)",
        "import torch.distributed.checkpoint as dcp; dcp.load(state, storage_reader=reader)",
        "from torch.distributed.checkpoint import FileSystemReader; reader = FileSystemReader(path)",
        "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save as save; save(a, b)",
        "import numpy as np; np.load(path, allow_pickle=True)",
        "import numpy as np; np.load(path, None, True)",
        "numpy.lib.format.read_array(file, allow_pickle=flag)",
        "import multiprocessing.connection as c; c.Client(address)",
        "import yaml; yaml.load(file)",
        "from yaml import load_all; load_all(file)",
        "import subprocess; subprocess.getoutput('ls')",
        "subprocess.run('ls', shell=True)",
        "from os import popen; popen('ls')",
        "from contextlib import suppress; suppress(Exception)",
        "import contextlib; contextlib.suppress(OSError, BaseException)",
    ]:
        assert found(unsafe.check_refused, text) == [text.count("\n") + 1]


@pytest.mark.parametrize(
    ("handler", "caught"),
    [
        ("except: raise", True),
        ("except Exception: pass", True),
        ("except (OSError, Exception): pass", True),
        ("except OSError: pass", False),
        ("except Exception as error: raise Refused(str(error)) from error", False),
    ],
)
def test_a_swallowed_error_is_caught(handler, caught):
    assert found(unsafe.check_refused, f"try:\n    work()\n{handler}") == ([3] if caught else [])


def test_a_safe_call_is_let_through():
    for text in [
        "import json; json.load(file)",
        "import pickle; pickle.Pickler(file).dump(state)",
        "model.eval(); self.exec(text); re.compile(text)",
        "torch.load(path, weights_only=True)",
        "import torch; torch.load(path, map_location='cpu', weights_only=True, mmap=True)",
        "import torch.distributed.checkpoint as c; c.load(s, storage_reader=c.HuggingFaceStorageReader(path))",
        "import numpy as np; np.load(path); np.load(path, mmap_mode='r', allow_pickle=False)",
        "module.load_state_dict(state)",
        "import yaml; yaml.safe_load(file)",
        "subprocess.run(['ls'], shell=False)",
        "import contextlib; contextlib.suppress(FileNotFoundError)",
        "'pickle.load(file)'",
    ]:
        assert found(unsafe.check_refused, text) == []


def test_what_goes_out_to_the_network_is_caught():
    for text in [
        "import urllib.request",
        "from urllib.request import urlopen as get; get(address)",
        "import http.client as client; client.HTTPConnection(host)",
        "import requests",
        "from torch import hub",
        "import torch; torch.hub.load(name)",
        "import socket; socket.create_connection(address)",
        "from importlib import import_module; import_module('requests')",
    ]:
        assert set(found(unsafe.check_network, text)) == {1}


def test_what_stays_on_the_machine_is_let_through():
    for text in [
        "import urllib.parse; from urllib import parse",
        "import socket; socket.socketpair(); socket.gethostname()",
        "import requests_of_workers; answers(requests)",
        "'import requests'",
    ]:
        assert found(unsafe.check_network, text) == []


def test_a_clock_that_can_be_set_is_caught():
    for text in [
        "import time; start = time.time()",
        "from time import time; start = time()",
        "import time; Thing(clock=time.time)",
        "import datetime; datetime.datetime.now()",
        "from datetime import datetime; datetime.utcnow()",
    ]:
        assert found(unsafe.check_calendar, text) == [1]
        assert found(unsafe.check_calendar, text, next(iter(unsafe.MAY_READ_THE_CALENDAR))) == []


def test_a_clock_that_only_goes_on_is_let_through():
    for text in [
        "import time; time.monotonic(); time.perf_counter(); time.thread_time(); time.strftime('%Y', moment)",
        "import datetime; datetime.timedelta(seconds=1); kinds = (datetime.date, datetime.time)",
        "'time.time()'",
    ]:
        assert found(unsafe.check_calendar, text) == []
