"""What `hasten doctor` does with a job: its model is looked at, and some of its steps."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hasten.cli.shared import load, read
from hasten.facts.finding import Finding

if TYPE_CHECKING:
    from hasten.doctor.registry import AnyRule


def is_job(argument: str) -> bool:
    """`digits.py:job`, and no path."""
    return ":" in argument and not Path(argument).exists()


def source_of(job: str) -> list[Path]:
    """The file that the job lies in, where its name says so."""
    file = Path(job.rpartition(":")[0])
    return [file] if file.is_file() else []


def look_at_job(name: str, plan: Path | None, rules: Sequence[AnyRule], shown: bool) -> list[Finding]:
    """By those of the rules that are about models and runs. shown: whether a person is told what was seen, too."""
    planned = read(plan)
    from hasten.doctor.inspect import found_in as found_in_model
    from hasten.doctor.inspect import inspect_job
    from hasten.doctor.observe import found_in as found_in_run
    from hasten.doctor.observe import observe_job
    from hasten.doctor.registry import ModelRule, RunRule
    from hasten.doctor.suppression import not_silenced

    try:
        _tell("the model")
        model = inspect_job(load(name), planned, name=name)
        run = observe_job(load(name), planned, name=name, tell=_tell)  # anew: a job may make its model only once
    finally:
        _tell("")
    if shown:
        from hasten.report.looks import budget_rows, layer_rows, model_lines, run_lines
        from hasten.report.terminal import show

        show(f"{name} on {run.device}", run_lines(run))
        typer.echo("\n" + "\n".join(f"  {line}" for line in budget_rows(run)))
        show("", model_lines(model))
        typer.echo("\n" + "\n".join(f"  {line}" for line in layer_rows(model)) + "\n")
    of_models = [rule for rule in rules if isinstance(rule, ModelRule)]
    of_runs = [rule for rule in rules if isinstance(rule, RunRule)]
    return not_silenced([*found_in_model(model, of_models), *found_in_run(run, of_runs)])


def _tell(what: str) -> None:
    """In place, where a person watches."""
    if sys.stderr.isatty():
        typer.echo(f"\r\033[Klooking at {what}" if what else "\r\033[K", nl=False, err=True)
