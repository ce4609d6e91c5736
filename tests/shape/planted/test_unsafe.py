"""Unsafe arguments, planted in every spelling, and innocent neighbours; and that ruff refuses the rest."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shape.planted import STEP, found
from shape.source import REPOSITORY
from shape.unsafe import check_arguments


def test_what_is_unsafe_is_caught():
    for text in [
        "import torch; torch.load(path, map_location='cpu', **options)",
        "from torch import load as read; read(path, weights_only=False)",
        "import numpy as np; np.load(path, allow_pickle=True)",
        "numpy.lib.format.read_array(file, allow_pickle=flag)",
        "from contextlib import suppress; suppress(Exception)",
        "import contextlib; contextlib.suppress(OSError, BaseException)",
    ]:
        assert found(check_arguments, text) == [1], text


def test_a_safe_call_is_let_through():
    for text in [
        "import torch; torch.load(path, map_location='cpu', weights_only=True, mmap=True)",
        "import numpy as np; np.load(path); np.load(path, mmap_mode='r', allow_pickle=False)",
        "import contextlib; contextlib.suppress(FileNotFoundError)",
    ]:
        assert found(check_arguments, text) == [], text


REFUSED_BY_RUFF = """\
from pickle import Unpickler as Base; Base(file)
import pickle; map(pickle.loads, texts)
import dill; dill.load(file)
eval(text)
import torch; read = torch.load
import torch.distributed.checkpoint as dcp; dcp.load(state)
import yaml; yaml.load(file)
import subprocess; subprocess.run(command, shell=True)
from os import popen; popen('ls')
from urllib.request import urlopen as get; get(address)
from torch import hub
import socket; socket.create_connection(address)
from time import time as now; now()
import datetime; datetime.datetime.now()
"""


@pytest.mark.fault("clock jump")
def test_ruff_refuses_code_from_files_the_network_and_clocks_that_can_be_set():
    command = [sys.executable, "-m", "ruff", "check", "-", "--stdin-filename", STEP, "--output-format", "concise"]
    done = subprocess.run(command, input=REFUSED_BY_RUFF, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    refused = {int(line.split(":")[1]) for line in done.stdout.splitlines() if " TID251 " in line or " S" in line}
    assert refused == {*range(1, REFUSED_BY_RUFF.count("\n") + 1)}, done
