"""The command line. Every command ends with the command to run next, and every failure in one block and its exit code.

A command is a function in a module of this package. A process imports the module of its own command alone, to start
sooner.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from itertools import chain
from typing import Any

from hasten.cli.application import app as application
from hasten.cli.application import own_process, report_failure, split_words
from hasten.cli.tuning.script_words import split_at_script
from hasten.errors import Misconfigured
from hasten.stop_signals import end_at_once

_MODULES = {
    "doctor": ("doctor.doctor_command",),
    "tune": ("tuning.tune_command",),
    "run": ("run_command",),
    "prove": ("prove.loss_command", "prove.resume_command"),
    "train": ("train_command",),
    "evaluate": ("evaluate_command",),
    "checkpoints": ("checkpoints_command",),
    "techniques": ("techniques_command",),
    "profile": ("profile_command",),
    "plan-mesh": ("plan_mesh_command",),
    "pack": ("pack_command",),
    "report": ("report_command",),
}
"""Command -> its modules, in the order that help shows."""


def __getattr__(name: str) -> Any:
    """`app`, the application with every command."""
    if name != "app":
        raise AttributeError(f"module 'hasten.cli' has no attribute {name!r}")
    _import_commands(_MODULES)
    return application


def _import_commands(names: Iterable[str]) -> None:
    for module in chain.from_iterable(_MODULES[name] for name in names):
        import_module(f"hasten.cli.{module}")


def main() -> None:
    """The `hasten` command, once all of this is loaded; __main__.py is where it begins."""
    end_at_once()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character gets the rest of the line
    own_process()
    words = sys.argv[1:]
    _import_commands(words[:1] if words and words[0] in _MODULES else _MODULES)
    try:
        own, behind = split_at_script(words) or split_words(words)
    except Misconfigured as error:
        sys.exit(report_failure(error, as_json="--json" in words))
    try:
        application(args=own, obj=behind)
    finally:
        _drop_what_cannot_be_written()


def _drop_what_cannot_be_written() -> None:
    """Else Python would fail to write it when the process ends, and replace the exit code of the command by its own."""
    stream = sys.stdout
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
