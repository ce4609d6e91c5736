"""`hasten tune`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.application import (
    AsJson,
    Quiet,
    SetOption,
    app,
    command,
    ends_with_exit_code,
    exit_code_of,
    job_options,
)
from hasten.cli.tuning.launcher import ScriptProcesses, leads_script
from hasten.cli.tuning.script_words import MODULE, is_script
from hasten.cli.tuning.search_run import CEILING, SECONDS, Asked, Subject, search
from hasten.errors import Misconfigured
from hasten.facts.plan import DEFAULT_PLAN
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import WIDE_LABEL

if TYPE_CHECKING:
    from hasten.training.setup.job_options import JobOptions

FILE = (
    "The training script or notebook, a console script's name, or -m and a module; the script's own options follow it. "
    "Or a job: path/file.py:function."
)
OUTPUT = "The plan file to write. Every trial is kept beside it, in plan.trials.jsonl for plan.toml."
STEPS = "The optimizer steps of the script's whole training, where its loops do not say."
ALLOW = (
    "The most that a choice may change: bits, rounding, statistics, training. "
    "Choices that change training are judged by whole runs, which take time beyond --seconds."
)
BUSY = (
    "Measure while other programs use the CPU; the result is then valid for a machine that is as busy. "
    "Without it, disturbed measurements are repeated, for up to --seconds more."
)
APPLY = "Write the patch into the script's own files; without it, beside the plan."
ALLOWED = ("bits", "rounding", "statistics", "training")


@app.command()
@ends_with_exit_code
def tune(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="FILE", help=FILE)],
    file: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help=OUTPUT)] = Path(DEFAULT_PLAN),
    allow: Annotated[
        str,
        typer.Option(metavar="CLASS", help=ALLOW),
    ] = CEILING,
    seconds: Annotated[
        float,
        typer.Option(metavar="S", min=1, help="Approximate duration; compiling and final proofs can exceed it."),
    ] = SECONDS,
    settings: SetOption = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", min=1, help=STEPS)] = None,
    processes: ScriptProcesses = None,
    applies: Annotated[bool, typer.Option("--apply", help=APPLY)] = False,
    busy: Annotated[bool, typer.Option("--busy", help=BUSY)] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Try every technique, and write what is proven as a plan. Run it again to continue after an interruption.

    \b
    Examples:
      hasten tune train.py --epochs 3
      hasten tune --seconds 300 -o night.toml train.py --epochs 3
      hasten tune -m package.train
      hasten tune --nproc 2 train.py
      hasten tune digits.py:job --allow rounding
    """
    asked = Asked(file=file, seconds=seconds, allow=allow, busy=busy, began=time.monotonic())
    if allow not in ALLOWED:
        raise Misconfigured(f"--allow is {allow!r}", fix=f"write one of {', '.join(ALLOWED)}")
    of_script = is_script(job) or job.startswith(MODULE)
    if of_script and not leads_script(processes):
        return
    with CommandOutput(quiet=quiet, as_json=as_json, label_columns=WIDE_LABEL) as output:
        if of_script:
            from hasten.cli.tuning.script_subject import AskedOfScript, applied_before, command_of, script_subject

            asked_of = AskedOfScript(plan=file, steps=steps, applies=applies)
            if applies and (before := applied_before(asked_of, job)):
                output.result(Sentence(headline=before), [], command_of(job, context.obj or ()), {"applied": True})
                return
            subject = script_subject(job, context.obj or (), asked_of, output)
        elif processes is not None:
            what = "is of a script, and this is a job"
            raise Misconfigured(
                what, where="--nproc", fix=f"tune it in one process, then: hasten train {job} --nproc N"
            )
        elif applies:
            fix = f"train it with its plan: hasten train {job} --plan {file}"
            raise Misconfigured("changes the files of a script, and this is a job", where="--apply", fix=fix)
        else:
            subject = _job_subject(job, job_options(context, settings), output)
        found = search(subject, asked, output)
    if found.interrupt is not None:
        raise typer.Exit(exit_code_of(found.interrupt))


def _job_subject(job: str, options: JobOptions, output: CommandOutput) -> Subject:
    from hasten.training.setup.load_job import split_name

    split_name(job)  # a name without a function is answered before torch is loaded
    from hasten.tuning.trials.preloaded_libraries import libraries_of
    from hasten.tuning.trials.trial_process import start_fork_server

    start_fork_server(libraries_of(job))  # which loads torch, as this process does meanwhile
    output.header(f"Tuning {job}")
    from hasten.checkpoint.folders.process_folder import process_folder
    from hasten.tuning.proof.job_prover import JobProver
    from hasten.tuning.trials.arms import Arms

    return Subject(
        name=job,
        plain=command("train", job, None, options),
        arms=lambda others: Arms(job, place=process_folder(), other_programs=others, options=options),
        prover=JobProver,
        again=lambda own: ["hasten", "tune", job, *own, *options.words],
        following=lambda plan: command("train", job, plan, options),
    )
