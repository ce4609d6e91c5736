"""Every way in: what opens a file that others may have made. A new one enrols itself in one line of DOORS."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

import hasten
from hasten.checkpoint.store import Store
from hasten.cli import app
from hasten.cli.tuning.trials_file import Trials
from hasten.data.cache.cache_building import open_cache
from hasten.errors import HastenError
from hasten.training.weights.initial_weights import InitialWeights
from support import small_job

from .payloads import CACHE, PLAN, RUN, SHARDS, UNFIT, UNKNOWN, WEIGHTS, Payload
from .run_payloads import BEGAN, MANIFEST, STATE, TENSORS

COMMAND: Any = typer.main.get_command(app)  # made once: it takes longer than most commands
CHECKPOINT = (MANIFEST, STATE, TENSORS)
JOB = "jobs_of_tests.py:job"
RESUME = f"train {JOB} --resume --run-dir {{}} --save-every 100"


@dataclass(frozen=True)
class Ended:
    """code: that a command ends with. shown: all that came to the terminal, or would have come."""

    code: int
    shown: str


@dataclass(frozen=True)
class Door:
    """opens: is given the path of what to open. needs: what it cannot do without, so that it refuses when that is
    spoilt. ignores: files that it never opens. takes_long: where it is not refused."""

    name: str
    kind: str
    opens: Callable[[Path], Ended]
    needs: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    takes_long: bool = False

    def is_tried_with(self, payload: Payload) -> bool:
        if payload.kind != self.kind or payload.file in self.ignores:
            return False
        return self.must_refuse(payload) or not self.takes_long

    def must_refuse(self, payload: Payload) -> bool:
        return payload.spoils in self.needs


def command(line: str) -> Callable[[Path], Ended]:
    """{} in the line stands for the path."""

    def opens(path: Path) -> Ended:
        with all_that_is_shown() as shown, pytest.raises(SystemExit) as ended:
            COMMAND([str(path) if each == "{}" else each for each in shlex.split(line)], "hasten")
        return Ended(int(ended.value.code or 0), shown.getvalue())

    return opens


def call(function: Callable[[Path], Any]) -> Callable[[Path], Ended]:
    def opens(path: Path) -> Ended:
        with all_that_is_shown() as shown:
            try:
                function(path)
            except HastenError as error:
                return Ended(error.exit_code, f"{shown.getvalue()}\n{error}")
        return Ended(0, shown.getvalue())

    return opens


@contextmanager
def all_that_is_shown() -> Iterator[io.StringIO]:
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        yield shown


class Numbers:
    """A steady data set, of which a cache can be made."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return {"row": [float(index)] * 3, "label": index}


def read_cache(folder: Path) -> None:
    said = list[str]()
    cached = open_cache(Numbers(), folder, say=said.append)
    for index in range(4):
        cached[index]  # which may say something else: whoever can write into this folder is its owner


def read_checkpoints(run: Path) -> None:
    store = Store(run / "checkpoints")
    store.newest(lambda checkpoint, error: None)
    for each in store.found():
        each.read()


def read_samples(folder: Path) -> None:
    data = hasten.Shards(folder)
    for index in range(len(data)):
        data[index]


def begin_again(run: Path) -> None:
    given = InitialWeights.recorded(run)
    if given is not None:
        given.within(small_job()).model()


_OF_TRAINING = ("plan.toml", ".lock")  # which nobody looks at who looks at checkpoints
_OF_THE_RUN = (*_OF_TRAINING, "metrics.jsonl")
DOORS = (
    Door("hasten train --weights", WEIGHTS, command(f"train {JOB} --weights {{}}"), (WEIGHTS, UNFIT)),
    Door("hasten.read_weights", WEIGHTS, call(hasten.read_weights), (WEIGHTS,)),
    Door("hasten train --plan", PLAN, command(f"train {JOB} --plan {{}}"), (PLAN, UNKNOWN), ("trials",)),
    Door("hasten schedule", PLAN, command(f"schedule {JOB} --plan {{}}"), (PLAN, UNKNOWN), ("trials",)),
    Door("hasten profile", PLAN, command(f"profile {JOB} --plan {{}}"), (PLAN, UNKNOWN), takes_long=True),
    Door("hasten prove loss", PLAN, command(f"prove loss {JOB} --plan {{}}"), (PLAN,), takes_long=True),
    Door("hasten report PLAN", PLAN, command("report {}"), (PLAN, "trials")),
    Door("hasten.read_plan", PLAN, call(hasten.read_plan), (PLAN,), ("trials",)),
    Door("the trials of hasten tune", PLAN, call(lambda path: Trials(path).close()), ("trials",), (PLAN,)),
    Door("hasten checkpoints", RUN, command("checkpoints {}"), (), (*_OF_TRAINING, BEGAN, TENSORS)),
    Door(
        "hasten checkpoints --json", RUN, command("checkpoints {} --json"), (), (*_OF_TRAINING, BEGAN, STATE, TENSORS)
    ),
    Door("hasten export", RUN, command("export {} -o out.safetensors"), (*CHECKPOINT, BEGAN), _OF_TRAINING),
    Door("hasten report RUN", RUN, command("report {} -o page.html"), ("plan.toml",), CHECKPOINT),
    Door("hasten train --resume", RUN, command(RESUME), ("plan.toml", UNKNOWN, BEGAN), (TENSORS,)),
    Door("Checkpoint.read", RUN, call(read_checkpoints), CHECKPOINT, _OF_THE_RUN),
    Door("what a run began with", RUN, call(begin_again), (BEGAN,), (*_OF_THE_RUN, *CHECKPOINT)),
    Door("hasten pack --verify", SHARDS, command("pack {} --verify"), ("index.json", "index.bin")),
    Door("hasten.Shards", SHARDS, call(read_samples), ("index.json", "index.bin")),
    Door("a cache", CACHE, call(read_cache)),
)
