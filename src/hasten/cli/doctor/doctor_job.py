"""What `hasten doctor` does with a job: it profiles the model, and some steps of a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.application import introduced, read
from hasten.facts.finding import Finding
from hasten.report.terminal.command_output import CommandOutput
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


def profile_job(
    name: str, plan: Path | None, output: CommandOutput, options: JobOptions = NONE_GIVEN
) -> tuple[ModelProfile, RunProfile]:
    planned = read(plan)
    from hasten.doctor.profiling.model_profiler import profile_model
    from hasten.doctor.profiling.run_profiler import profile_run
    from hasten.training.setup.load_job import load_job

    loaded = introduced(output, "Profiling", name, options)
    with closing(output.progress("profiling")) as waiting:
        model = profile_model(loaded, planned, name=name)
        # The job is loaded again: it may be able to build its model only once.
        run = profile_run(load_job(name, options=options), planned, name=name, watch=waiting)
    return model, run


def show_profile(model: ModelProfile, run: RunProfile, output: CommandOutput) -> None:
    output.facts("", [("device", run.device), *run_lines(run)])
    output.table(budget_rows(run))
    output.facts("", model_lines(model))
    output.table(layer_rows(model))


def findings_of(model: ModelProfile, run: RunProfile, rules: Sequence[AnyRule]) -> list[Finding]:
    """By the rules that are about models and runs."""
    from hasten.doctor.lint.suppression import not_silenced
    from hasten.doctor.registry import found_in_model, found_in_run, of_models, of_runs

    return not_silenced([*found_in_model(model, of_models(rules)), *found_in_run(run, of_runs(rules))])
