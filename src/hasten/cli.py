"""The command line. Every command ends with the command to run next, and every failure in one block and its exit code.

Help must answer at once, so nothing heavy is imported up here: each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from hasten.errors import HastenError, UserCodeFailed

if TYPE_CHECKING:
    from hasten.facts.events import Receiver
    from hasten.facts.job import Job
    from hasten.facts.plan import Plan

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

INTERRUPTED = 130  # 128 + SIGINT, as a shell counts it

app = typer.Typer(
    name="hasten",
    help="Makes PyTorch training fast, and proves it.",
    epilog="Start with:  hasten train examples/digits.py:job",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich takes longer to load than the whole help takes to print
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)

JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="Where the job is: path/file.py:function or package.module:function.")
]
PlanPath = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE", help="The plan to obey; without one, the job as it is.")
]


def main() -> None:
    """The entry point of the `hasten` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character gets the rest of the line
    app()


def ending_in_one_block(command: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """The command, with every failure that is not its own fault told in one block, and ended by its exit code."""

    @wraps(command)
    def guarded(*arguments: Arguments.args, **options: Arguments.kwargs) -> Answer:
        try:
            return command(*arguments, **options)
        except KeyboardInterrupt:
            typer.echo("\ninterrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, BrokenPipeError):
            raise
        except Exception as error:
            from hasten.training.failures import as_failure

            failure = as_failure(error)
            if failure is None:
                typer.echo("This is a fault of hasten itself. Please report it with the lines below.", err=True)
                raise
            _tell(failure, error)
            raise typer.Exit(failure.exit_code) from error

    return guarded


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.command()
@ending_in_one_block
def train(
    job: JobName,
    plan: PlanPath = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Folder for what the run leaves behind: runs/<function>-<n>."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.epochs.")] = None,
    max_steps: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.max_steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.batch_size.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.seed.")] = None,
    device: Annotated[str | None, typer.Option(metavar="D", help="Replaces Job.device: cpu, cuda, cuda:1.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
) -> None:
    """Train a job, by a plan if one is given.

    \b
    Examples:
      hasten train digits.py:job
      hasten train digits.py:job --plan plan.toml
      hasten train digits.py:job --epochs 2 --run-dir runs/short
    """
    from hasten.checkpoint.files import remove_empty_folder
    from hasten.report.terminal import Progress
    from hasten.training.locate import split_name

    function = split_name(job)[1]
    folder = _run_folder(run_dir, function)
    try:
        changes = {"epochs": epochs, "max_steps": max_steps, "batch_size": batch_size, "seed": seed, "device": device}
        loaded = _load(job, **changes)
        receivers: list[Receiver] = [Progress(next_command=_after_training(job, plan, folder, tensorboard))]
        if tensorboard and _leads():
            from hasten.training.logs import TensorBoard

            receivers.append(TensorBoard(folder / "tensorboard"))
        from hasten.entry import train as train_job

        train_job(loaded, _read(plan), run_dir=folder, receivers=receivers, name=job)
    except KeyboardInterrupt:
        _tell_what_is_left(folder)
        raise
    finally:
        remove_empty_folder(folder)


@app.command()
@ending_in_one_block
def techniques() -> None:
    """List what a plan can switch on, stage by stage.

    \b
    Example:
      hasten techniques
    """
    from hasten.report.terminal import show
    from hasten.techniques import ALL, Stage

    width = max(len(technique.name) for technique in ALL)
    for stage in Stage:
        lines: list[tuple[str, str]] = []
        for technique in ALL:
            if technique.stage is stage:
                lines += [(technique.name.ljust(width), technique.headline), ("", f"when {technique.treats.value}")]
        if lines:
            show(stage.name.capitalize(), lines)
    _offer("hasten explain precision")


@app.command()
@ending_in_one_block
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A technique, as `hasten techniques` lists them.")],
) -> None:
    """Tell what a technique does. Also when it loses, what it costs, and where it comes from.

    \b
    Example:
      hasten explain channels_last
    """
    from hasten.errors import Misconfigured
    from hasten.facts.names import did_you_mean
    from hasten.report.terminal import show
    from hasten.techniques import ALL

    known = {technique.name: technique for technique in ALL}
    if name not in known:
        raise Misconfigured(f'there is no technique "{name}"', fix=did_you_mean(name, known))
    technique = known[name]
    typer.secho(f"\n{name}", bold=True)
    width = min(shutil.get_terminal_size().columns, 100)
    for paragraph in technique.manual.split("\n\n"):
        typer.echo("\n" + (paragraph if "\n " in paragraph else fill(paragraph, width)))
    show(
        "",
        [
            ("stage", technique.stage.name.lower()),
            ("when", technique.treats.value),
            ("values", technique.values),
            *(("costs" if index == 0 else "", cost) for index, cost in enumerate(technique.costs)),
            ("source", technique.source),
            ("in a plan", "[[choice]]"),
            ("", f'technique = "{name}"'),
            ("", "value = …"),
        ],
    )
    _offer("hasten train digits.py:job --plan plan.toml")


@app.command()
@ending_in_one_block
def schedule(
    job: JobName,
    plan: PlanPath = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a picture.")] = None,
    range_test: Annotated[
        bool, typer.Option("--range-test", help="Train briefly with a rising rate instead, and suggest one.")
    ] = False,
) -> None:
    """Draw the learning rate of the planned run. Or find one, with --range-test.

    \b
    Examples:
      hasten schedule digits.py:job --png schedule.png
      hasten schedule digits.py:job --range-test
    """
    loaded, planned = _load(job), _read(plan)
    from hasten.answers import show_range_test, show_schedule

    if range_test:
        show_range_test(loaded, planned, png)
    else:
        show_schedule(job, loaded, planned, png)
    _offer("hasten explain learning_rate" if range_test else _command("train", job, plan))


@app.command()
@ending_in_one_block
def profile(
    job: JobName,
    plan: PlanPath = None,
    microbatch: Annotated[
        bool, typer.Option("--microbatch", help="Instead, find the fastest microbatch that fits.")
    ] = False,
) -> None:
    """Show where seconds and memory go. A few dozen steps are trained and thrown away.

    \b
    Examples:
      hasten profile digits.py:job --plan plan.toml
      hasten profile digits.py:job --microbatch
    """
    from hasten.answers import show_microbatches, show_profile

    loaded, planned = _load(job), _read(plan)
    if microbatch:
        show_microbatches(loaded, planned)
    else:
        from hasten.tune.profile import profile_job

        show_profile(job, profile_job(loaded, planned, name=job))
    _offer("hasten explain microbatch" if microbatch else "hasten techniques")


@app.command()
@ending_in_one_block
def pack(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A folder of class folders of pictures, or path/file.py:function.")
    ],
    folder: Annotated[Path | None, typer.Argument(metavar="DST", help="The new folder for the shards.")] = None,
    shard_size: Annotated[int, typer.Option(metavar="MB", min=1, help="Of one shard, about.")] = 256,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the order that the samples are written in.")] = 0,
    keep_order: Annotated[bool, typer.Option("--keep-order", help="Write the samples in their own order.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Instead, compare the shards in SRC with their checksums.")
    ] = False,
) -> None:
    """Pack a data set into tar shards. A function gives any map-style data set.

    \b
    Examples:
      hasten pack photos/train photos-shards
      hasten pack data.py:train_data shards --shard-size 100
      hasten pack photos-shards --verify
    """
    from hasten.answers import show_packing, show_verified
    from hasten.errors import Misconfigured

    if verify and folder is not None:
        raise Misconfigured("--verify takes one folder", fix=shlex.join(["hasten", "pack", str(folder), "--verify"]))
    if verify:
        show_verified(Path(source))
        _offer("hasten train digits.py:job")
    elif folder is None:
        raise Misconfigured("DST is missing", fix=shlex.join(["hasten", "pack", source, "a-new-folder"]))
    else:
        show_packing(source, folder, shard_size * 1_000_000, None if keep_order else seed)
        _offer(shlex.join(["hasten", "pack", str(folder), "--verify"]))


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"hasten {version_of('hasten')}")
        raise typer.Exit


# ── what commands print ─────────────────────────────────────────────────────────────────────────────────────────────


def _offer(command: str) -> None:
    from hasten.report.terminal import show

    show("", [("next", command)])


def _tell(failure: HastenError, error: Exception) -> None:
    """On standard error; what Python says about the user's own code comes first, so that the block stays in sight."""
    from hasten.report.failures import failure_block
    from hasten.report.terminal import show
    from hasten.training.user_code import users_traceback

    if isinstance(failure, UserCodeFailed):
        typer.echo(users_traceback(error.__cause__ or error), err=True, nl=False)
    show("", failure_block(failure), sys.stderr)


def _tell_what_is_left(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        typer.echo(f"\n{folder} holds what was logged, and no weights: they are saved when a run ends", err=True)


# ── helpers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _load(name: str, **changes: object) -> Job:
    """The job, with the fields replaced that were given on the command line."""
    from dataclasses import replace

    from hasten.training.locate import load_job

    given: dict[str, Any] = {field: value for field, value in changes.items() if value is not None}
    return replace(load_job(name), **given)


def _read(plan: Path | None) -> Plan | None:
    from hasten.facts.plan_file import read_plan
    from hasten.techniques import ALL

    return None if plan is None else read_plan(plan, [technique.name for technique in ALL])


def _run_folder(wanted: Path | None, function: str) -> Path:
    """The folder of this run, made and proven writable before anything slow begins."""
    from hasten.checkpoint.files import check_writable, make_folder, make_numbered_folder

    if not _leads():
        return wanted or Path("runs")  # the first process makes it, and writes
    if wanted is None:
        folder = make_numbered_folder(Path("runs"), function)
    else:
        make_folder(folder := wanted)
    check_writable(folder)
    return folder


def _leads() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _after_training(job: str, plan: Path | None, folder: Path, tensorboard: bool) -> str:
    if tensorboard:
        return shlex.join(["tensorboard", "--logdir", str(folder)])
    return _command("profile", job, plan)


def _command(verb: str, job: str, plan: Path | None) -> str:
    return shlex.join(["hasten", verb, job, *(["--plan", str(plan)] if plan is not None else [])])
