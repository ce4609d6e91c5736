"""Begins the processes of `hasten prove resume` as copies of this one, in which torch is loaded: so they begin at once.

They are processes of their own all the same, which are killed as others are."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch._dynamo  # here, so that no child has to load it, as every optimizer does

from hasten.cli.prove import resume_worker

__all__ = ["Forked", "begin", "torch"]


class Forked:
    def __init__(self, pid: int) -> None:
        self.pid, self._code = pid, None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def begin(told: Mapping[str, Any], descriptors: Sequence[int], output: int, environment: Mapping[str, str]) -> Forked:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            os.close(reading)
            os.close(writing)  # which says that it has a session
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  and no capture of tests
            tempfile.tempdir = None
            os.environ.clear()
            os.environ.update(environment)
            told = json.loads(json.dumps(told))
            sys.path[:] = told["path"]
            resume_worker.train(told)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    return Forked(pid)
