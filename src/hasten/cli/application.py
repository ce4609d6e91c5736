"""What every command shares: the application, its arguments, its header, and how a failure ends.

Help must answer at once, so this file imports nothing heavy: each command imports what it needs when it runs.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from hasten.errors import (
    INTERRUPTED,
    TERMINATED,
    HastenError,
    NoJob,
    PlanError,
    RankFailed,
    StorageFailed,
    Terminated,
    UserCodeFailed,
)
from hasten.facts.formatting import printable
from hasten.facts.ranks import leads
from hasten.report.display import MOST_COLUMNS
from hasten.report.terminal.output import Lines, failure_block, show, wrapped, write_line
from hasten.stop_signals import ctrl_c_interrupts
from hasten.training.setup.job_options import options_of

if TYPE_CHECKING:
    from hasten.facts.job import Job
    from hasten.facts.plan import Plan
    from hasten.report.terminal.command_output import CommandOutput
    from hasten.training.setup.job_options import JobOptions

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

_owns_process = False

app = typer.Typer(
    name="hasten",
    help="Makes PyTorch training fast, and proves it.",
    epilog="Start with:  hasten tune train.py",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich takes longer to load than the whole help takes to print
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
prove = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(prove, name="prove")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"hasten {version_of('hasten')}")
        raise typer.Exit


@prove.callback()
def proofs() -> None:
    """Prove that a plan does no harm, or that resuming is exact.

    \b
    Examples:
      hasten prove loss digits.py:job --plan plan.toml
      hasten prove resume digits.py:job
    """


JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="The job: path/file.py:function or package.module:function.")
]
PlanPath = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE", help="The plan to train with; without one, the baseline.")
]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="An argument of the job's function that has a default. May be repeated."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show only the result: no header and no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]
LOAD_A_JOB = frozenset(
    {"train", "evaluate", "doctor", "schedule", "profile", "plan-mesh", "pack", "tune", "prove"}
)  # commands


def job_options(context: typer.Context, settings: Sequence[str] | None) -> JobOptions:
    """Of the present command: --set, and what stands behind --, which the context has from split_words."""
    return options_of(settings or [], context.obj or ())


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command, and sys.argv[1:] of the job that it loads: what stands behind --."""
    own = [*words]
    if "--" not in own or own[0] not in LOAD_A_JOB:
        return own, []
    place = own.index("--")
    return own[:place], own[place + 1 :]


def ends_with_exit_code(
    command: Callable[Arguments, Answer], signals: Callable[[], AbstractContextManager[None]] = ctrl_c_interrupts
) -> Callable[Arguments, Answer]:
    """The command; a failure prints one block, and with --json one object, and ends it with the error's exit code.
    signals: what Ctrl-C does; by default it interrupts the command, which returns what it has found so far."""

    @wraps(command)
    def guarded(*arguments: Arguments.args, **options: Arguments.kwargs) -> Answer:
        try:
            with signals():
                return command(*arguments, **options)
        except (typer.Exit, BrokenPipeError):
            raise
        except RunEnded as ended:
            raise typer.Exit(
                report_failure(ended.cause, ended.left, as_json=bool(options.get("as_json")))
            ) from ended.cause
        except BaseException as error:  # also SystemExit, which the job's code may raise
            raise typer.Exit(report_failure(error, as_json=bool(options.get("as_json")))) from error

    return guarded


class RunEnded(Exception):
    """A run ended too soon. left: printed after the cause: what is saved, and the command that resumes the run."""

    def __init__(self, cause: BaseException, left: Lines) -> None:
        self.cause, self.left = cause, left
        super().__init__("; ".join(text for _, text in left))


def report_failure(error: BaseException, left: Lines | None = None, *, as_json: bool) -> int:
    """Print the error and return its exit code. Raises it again where it is a bug of hasten."""
    if isinstance(error, RankFailed) and not leads():
        return error.exit_code  # that rank and the leader print it
    if isinstance(error, KeyboardInterrupt):
        code = exit_code_of(error)
        if leads():
            typer.echo("\ninterrupted", err=True)
    else:
        failure = _failure_of(error)
        if failure is None:
            typer.echo("This is a bug in hasten. Please report it with the lines below.", err=True)
            raise error
        code = failure.exit_code
        _print_failure(failure, error, as_json)
    if left:
        show("", left, sys.stderr)
    return code


def _failure_of(error: BaseException) -> HastenError | None:
    if isinstance(error, HastenError):
        return error  # at once: to judge any other loads torch
    from hasten.training.failures.as_failure import as_failure

    failure = as_failure(error)
    if failure is None and isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or "standard output"  # errors of files that hasten writes are StorageFailed already
        return StorageFailed(f"cannot be written: {error.strerror}", where=where, fix="free space on its disk")
    return failure


def _print_failure(failure: HastenError, error: BaseException, as_json: bool) -> None:
    """On standard error, and as an object on standard output where that is asked for. The traceback of the user's own
    code comes first, so that the block stays in sight."""
    from hasten.training.failures.user_code import other_notes
    from hasten.users_code import users_traceback

    if isinstance(failure, UserCodeFailed):
        trace = failure.trace or users_traceback(error.__cause__ or error)
        typer.echo("".join(f"{printable(line)}\n" for line in trace.splitlines()), err=True, nl=False)
    block = _answer_to_a_script(failure) if isinstance(failure, NoJob) and leads() else failure_block(failure)
    rank = [] if leads() else [("rank", os.environ["RANK"])]
    show("", [*rank, *block, *(("also", note) for note in other_notes(error))], sys.stderr)
    if as_json and leads():
        said = {"error": failure.what, "where": failure.where, "fix": failure.fix, "exit_code": failure.exit_code}
        with suppress(OSError, ValueError):  # standard output may be what failed
            write_line(sys.stdout, json.dumps(said))


def _answer_to_a_script(failure: NoJob) -> Lines:
    """What to do with a training script that has no job; above it, on standard error, the draft of one, or why there is
    none. The failure itself where a function was named, or the file is no such script."""
    from hasten.doctor.job_sketch import TakingTurns, job_sketch
    from hasten.regular_files import read_regular

    place, _, function = failure.where.partition(":")
    try:
        sketch = job_sketch(read_regular(Path(place)).decode())
    except (OSError, UnicodeDecodeError):
        sketch = None
    if sketch is None:
        return failure_block(failure)
    needed = "hasten needs a Job here: a function that returns the model, loss, optimizer and data of one training."
    following: Lines = []
    if isinstance(sketch, TakingTurns):
        turns = f"{', '.join(sketch.modules)} have optimizers of their own: networks that take turns are no Job."
        _print_paragraph(f"{needed} {turns}")
        failure.fix = "keep their loop in your own code, as docs/guides/not-a-job.md shows"
    else:
        _print_paragraph(f"{needed} From the names in {place}, this is a draft for you to complete:")
        lines = "".join(f"    {printable(line)}".rstrip() + "\n" for line in ["", *sketch.lines])
        typer.echo(lines, err=True, nl=False)
        if sketch.local:
            _print_paragraph(f"Define inside job(), before the return: {', '.join(sketch.local)}")
        for each in sketch.left_out:
            _print_paragraph(f"Not taken over: {each}")
        failure.fix = "put the draft into job.py, with the imports that it needs, and complete it: docs/start/job.md"
        following = [("next", "hasten tune job.py:job")]
    following = [("or", f"{shlex.join(['hasten', 'tune', place])}, which needs no job"), *following]
    return [*(failure_block(failure) if function else [("fix", failure.fix)]), *following]


def _print_paragraph(text: str) -> None:
    lines = wrapped(printable(text), MOST_COLUMNS - 2)
    typer.echo("\n" + "\n".join(f"  {line}" for line in lines), err=True)


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


def own_process() -> None:
    """Nothing but the command runs in this process, which ends with it."""
    global _owns_process
    _owns_process = True


def load(name: str, options: JobOptions, **changes: object) -> Job:
    """The job, with the fields replaced that were given on the command line."""
    from dataclasses import replace

    from hasten.training.setup.load_job import load_job

    if _owns_process:
        _freeze_libraries()
    given: dict[str, Any] = {field: value for field, value in changes.items() if value is not None}
    seed = given.get("seed", 0) % 2**63  # one out of this range is refused with the job's other fields
    return replace(load_job(name, seed, options, say_on_loading), **given)


def introduced(output: CommandOutput, doing: str, name: str, options: JobOptions, **changes: object) -> Job:
    """The job, loaded under the header of its command. doing: as "Profiling"."""
    from hasten.facts.machine import read_machine

    output.header(f"{doing} {name}")
    job = load(name, options, **changes)
    output.machine(read_machine().summary)
    return job


def say_on_loading(text: str) -> None:
    """On standard error: a program may read what the command prints."""
    if leads():
        show("", [("note", text)], sys.stderr)


def _freeze_libraries() -> None:
    """Exempt from garbage collection what is imported by now: it lives as long as the process. Collections during
    training, and the end of the process, then take less time."""
    import gc

    from hasten import entry  # noqa: F401

    gc.freeze()


def read(plan: Path | None) -> Plan | None:
    from hasten.facts.plan_file import read_plan
    from hasten.techniques import ALL

    if plan is None:
        return None
    _check_is_of_jobs(read_plan(plan), plan)
    return read_plan(plan, [technique.name for technique in ALL])


def _check_is_of_jobs(plan: Plan, file: Path) -> None:
    """Raises PlanError for a plan that edits a script's source."""
    if plan.script is None:
        return
    from hasten.scripts.techniques import OF_SCRIPTS

    if own := [each.name for each in OF_SCRIPTS if plan.value_of(each.name) is not None]:
        fix = f"hasten run --plan {file} {plan.script.script}"
        raise PlanError(f"{own[0]} edits the source of a script, and a job has none", where=str(file), fix=fix)


def command(verb: str, job: str, plan: Path | None, options: JobOptions) -> str:
    planned = ["--plan", str(plan)] if plan is not None else []
    return shlex.join(["hasten", verb, job, *planned, *options.words])
