"""What `hasten doctor` does with a job: it profiles the model, and some steps of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hasten.cli.application import echo_indented, load, read
from hasten.facts.finding import Finding
from hasten.report.terminal.output import show
from hasten.report.terminal.profile_text import budget_rows, layer_rows, model_lines, run_lines
from hasten.training.setup.job_options import NONE_GIVEN, JobOptions

if TYPE_CHECKING:
    from hasten.doctor.registry import AnyRule
    from hasten.facts.profiles import ModelProfile, RunProfile


def is_job(argument: str) -> bool:
    """Whether it is `digits.py:job` and no path."""
    return ":" in argument and not Path(argument).exists()


def file_of(job: str) -> list[Path]:
    """The job's file, if its name says it."""
    file = Path(job.rpartition(":")[0])
    return [file] if file.exists() else []


def profile_job(name: str, plan: Path | None, options: JobOptions = NONE_GIVEN) -> tuple[ModelProfile, RunProfile]:
    """What the job prints goes to standard error: a program may read the findings."""
    planned = read(plan)
    from hasten.doctor.profiling.model_profiler import profile_model
    from hasten.doctor.profiling.run_profiler import profile_run
    from hasten.training.setup.load_job import load_job

    with stdout_to_stderr():
        try:
            _show_progress("the model")
            model = profile_model(load(name, options), planned, name=name)
            # The job is loaded again: it may be able to build its model only once.
            run = profile_run(load_job(name, options=options), planned, name=name, report=_show_progress)
        finally:
            _show_progress("")
    return model, run


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Also for other processes, which share the descriptors."""
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(output, 1)
        os.close(output)


def show_profile(name: str, model: ModelProfile, run: RunProfile) -> None:
    show(f"{name} on {run.device}", run_lines(run))
    echo_indented(budget_rows(run))
    show("", model_lines(model))
    echo_indented(layer_rows(model))
    typer.echo()


def findings_of(model: ModelProfile, run: RunProfile, rules: Sequence[AnyRule]) -> list[Finding]:
    """By the rules that are about models and runs."""
    from hasten.doctor.lint.suppression import not_silenced
    from hasten.doctor.registry import found_in_model, found_in_run, of_models, of_runs

    return not_silenced([*found_in_model(model, of_models(rules)), *found_in_run(run, of_runs(rules))])


def _show_progress(what: str) -> None:
    """In place, on a terminal."""
    if sys.stderr.isatty():
        typer.echo(f"\r\033[Kprofiling {what}" if what else "\r\033[K", nl=False, err=True)
