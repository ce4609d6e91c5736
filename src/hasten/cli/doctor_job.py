"""What `hasten doctor` does with a job: its model is looked at, and some of its steps."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hasten.cli.application import load, read
from hasten.facts.finding import Finding

if TYPE_CHECKING:
    from hasten.doctor.registry import AnyRule
    from hasten.facts.profiles import ModelProfile, RunProfile


@dataclass(frozen=True, kw_only=True, slots=True)
class JobLook:
    name: str
    model: ModelProfile
    run: RunProfile


def is_job(argument: str) -> bool:
    """`digits.py:job`, and no path."""
    return ":" in argument and not Path(argument).exists()


def source_of(job: str) -> list[Path]:
    """The file that the job lies in, where its name says so."""
    file = Path(job.rpartition(":")[0])
    return [file] if file.is_file() else []


def look_at_job(name: str, plan: Path | None) -> JobLook:
    """What the job prints goes where errors go: a machine may read what is found."""
    planned = read(plan)
    from hasten.doctor.profiling.profile_model import inspect_job
    from hasten.doctor.profiling.profile_run import observe_job

    with output_among_errors():
        try:
            _tell("the model")
            model = inspect_job(load(name), planned, name=name)
            run = observe_job(load(name), planned, name=name, tell=_tell)  # anew: a job may make its model only once
        finally:
            _tell("")
    return JobLook(name=name, model=model, run=run)


@contextmanager
def output_among_errors() -> Iterator[None]:
    """Also that of C code and of other processes, which know descriptors alone."""
    with ExitStack() as restored:
        with suppress(OSError):  # whoever began this process may have closed one of them
            _flush()
            output = os.dup(1)
            restored.callback(os.close, output)
            restored.callback(os.dup2, output, 1)
            restored.callback(_flush)
            os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield


def _flush() -> None:
    """What Python and C hold back for descriptor 1."""
    if sys.__stdout__ is not None:
        sys.__stdout__.flush()
    if os.name == "posix":  # elsewhere there is more than one C library
        ctypes.CDLL(None).fflush(None)


def show_look(look: JobLook) -> None:
    """What was seen, to a person."""
    from hasten.report.terminal.output import show
    from hasten.report.terminal.profile_text import budget_rows, layer_rows, model_lines, run_lines

    show(f"{look.name} on {look.run.device}", run_lines(look.run))
    typer.echo("\n" + "\n".join(f"  {line}" for line in budget_rows(look.run)))
    show("", model_lines(look.model))
    typer.echo("\n" + "\n".join(f"  {line}" for line in layer_rows(look.model)) + "\n")


def found_in_job(look: JobLook, rules: Sequence[AnyRule]) -> list[Finding]:
    """By those of the rules that are about models and runs."""
    from hasten.doctor.lint.suppression import not_silenced
    from hasten.doctor.profiling.profile_model import found_in as found_in_model
    from hasten.doctor.profiling.profile_run import found_in as found_in_run
    from hasten.doctor.registry import of_models, of_runs

    return not_silenced([*found_in_model(look.model, of_models(rules)), *found_in_run(look.run, of_runs(rules))])


def _tell(what: str) -> None:
    """In place, where a person watches."""
    if sys.stderr.isatty():
        typer.echo(f"\r\033[Klooking at {what}" if what else "\r\033[K", nl=False, err=True)
