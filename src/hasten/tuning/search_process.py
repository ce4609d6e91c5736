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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

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
_ANSWER, _FAILURE = '{"sentence": ', '{"error": '  # how its JSON begins
_TO_A_FILE = "write it to a file (%%writefile job.py in a notebook), and give its name: hasten.tune('job.py:job')"


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundApart:
    """answer: the fields that `hasten tune --json` prints; none where it was interrupted before it had any."""

    plan: Plan
    answer: Mapping[str, Any]


def found_apart(
    job: Callable[[], Job] | str,
    *,
    seconds: float,
    allow: Allow,
    output: str | os.PathLike[str] | None,
    busy: bool,
    show: Callable[[str], None],
) -> FoundApart:
    """What hasten.tune does. show: is called with each line of progress."""
    name = job if isinstance(job, str) else _name_of(job)
    with tempfile.TemporaryDirectory(prefix="found-plan-") as folder:
        plan = Path(folder, "plan.toml") if output is None else Path(output)
        options = ["--seconds", str(seconds), "--allow", allow, "--output", str(plan), *(["--busy"] if busy else [])]
        code, lines = _run([sys.executable, "-m", "hasten", "tune", name, *options, "--json"], show)
        last = next((each for each in reversed(lines) if each.startswith((_ANSWER, _FAILURE))), "")
        if code != 0 and code not in _INTERRUPTED:
            raise _failure(code, last, name)
        found = json.loads(last) if last.startswith(_ANSWER) else {}
        return FoundApart(plan=read_plan(plan) if found.get("plan") else Plan(), answer=found)


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


def _run(command: list[str], show: Callable[[str], None]) -> tuple[int, list[str]]:
    """The command's exit code, and the lines that it has written, which are shown as they come but for its JSON.
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
                _relay(process.stdout, lines, show)
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
                _relay(process.stdout, lines, show)
            return process.wait(), lines
        finally:
            process.kill()  # its trials end with it


def _relay(stream: IO[str], lines: list[str], show: Callable[[str], None]) -> None:
    for line in stream:
        lines.append(line)
        if not line.startswith((_ANSWER, _FAILURE)):
            show(line.rstrip("\n"))


def _failure(code: int, last: str, name: str) -> HastenError:
    """last: its failure as JSON; empty where something has killed it."""
    said = {"error": f"hasten tune ended with exit code {code}", "where": name, "fix": ""}
    if last.startswith(_FAILURE):
        said = json.loads(last)
    kind = next((each for each in _KNOWN if each.exit_code == code), HastenError)
    fix = said["fix"].replace("--busy", "busy=True")  # the one option that a fix names
    return kind(said["error"], where=said["where"], fix=fix)
