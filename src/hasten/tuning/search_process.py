"""The search for a plan from Python: `hasten tune` in a process of its own.

So a notebook or script keeps its memory, its device and its random numbers, and its own code is not run again.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal

from hasten.errors import (
    DataFailed,
    Hang,
    HastenError,
    Misconfigured,
    NonFinite,
    NotMeasurable,
    OutOfMemory,
    StorageFailed,
    UserCodeFailed,
)
from hasten.facts.job import Job, describe
from hasten.facts.plan import Plan
from hasten.facts.plan_file import read_plan

Allow = Literal["bits", "rounding", "statistics", "training"]
_KNOWN = (Misconfigured, UserCodeFailed, DataFailed, OutOfMemory, NonFinite, Hang, StorageFailed, NotMeasurable)
_INTERRUPTED = (128 + signal.SIGINT, -signal.SIGINT)
_ANSWER = '{"sentence": '  # how its JSON begins
_TO_A_FILE = "write it to a file (%%writefile job.py in a notebook), and give its name: hasten.tune('job.py:job')"


def tune(
    job: Callable[[], Job] | str,
    *,
    seconds: float = 60.0,
    allow: Allow = "statistics",
    output: str | os.PathLike[str] | None = None,
    busy: bool = False,
) -> Plan:
    """The plan that `hasten tune` finds for a job. Progress goes to sys.stderr.

    job: a function of an imported file or module that returns the job, or its name: "job.py:job". Trials build the job
        in processes of their own, so a function of a notebook, a lambda or a Job is refused.
    seconds: about how long the search takes; trials of compile take additional time.
    allow: the most that a choice may change: "bits", "rounding", "statistics" or "training".
    busy: measure although other programs use the CPU.
    output: the plan file to write, with the file of trials beside it. None writes no file.

    KeyboardInterrupt ends the search, and returns what was proven by then; a plan without choices where nothing was.
    Raises HastenError as the command does.
    """
    name = job if isinstance(job, str) else _name_of(job)
    with tempfile.TemporaryDirectory(prefix="found-plan-") as folder:
        plan = Path(folder, "plan.toml") if output is None else Path(output)
        options = ["--seconds", str(seconds), "--allow", allow, "--output", str(plan), *(["--busy"] if busy else [])]
        code, lines = _run([sys.executable, "-m", "hasten", "tune", name, *options, "--json"])
        if code != 0 and code not in _INTERRUPTED:
            raise _failure(code, lines, name)
        found = json.loads(lines[-1]) if lines and lines[-1].startswith(_ANSWER) else {}
        sys.stderr.write(f"{found.get('sentence', 'interrupted')}\n")
        return read_plan(plan) if found.get("plan") else Plan()


def _name_of(job: object) -> str:
    """file.py:function, or package.module:function. Raises Misconfigured for what other processes cannot load."""
    if not inspect.isfunction(job):
        raise Misconfigured(f"is {describe(job)}, which trials cannot build again", where="job", fix=_TO_A_FILE)
    module = sys.modules.get(job.__module__)
    file = getattr(module, "__file__", None)
    if job.__module__ == "__main__" or file is None or getattr(module, job.__name__, None) is not job:
        what = f"is {job.__qualname__} of {job.__module__}, which trials cannot load by its name"
        raise Misconfigured(what, where="job", fix=_TO_A_FILE)
    return f"{job.__module__ if '.' in job.__module__ else file}:{job.__name__}"


def _run(command: list[str]) -> tuple[int, list[str]]:
    """The command's exit code, and the lines that it has written, which are shown as they come but for its answer.
    Ctrl-C is passed on once; a second one ends it at once."""
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)  # the job's file may import what this process can
    lines = list[str]()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches it through this process alone
    ) as process:
        assert process.stdout is not None
        try:
            try:
                _relay(process.stdout, lines)
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                _relay(process.stdout, lines)
            return process.wait(), lines
        finally:
            process.kill()  # its trials end with it


def _relay(stream: IO[str], lines: list[str]) -> None:
    for line in stream:
        lines.append(line)
        if not line.startswith(_ANSWER):
            sys.stderr.write(line)


def _failure(code: int, lines: list[str], name: str) -> HastenError:
    """From the block in which the command has shown its failure."""
    said = {label: text.strip() for label, _, text in (line.strip().partition(" ") for line in lines)}
    what = said.get("error", f"hasten tune ended with exit code {code}")
    kind = next((each for each in _KNOWN if each.exit_code == code), HastenError)
    return kind(what, where="" if "error" in said else name, fix=said.get("fix", ""))
