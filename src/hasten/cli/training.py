"""`hasten train`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.shared import JobName, PlanPath, app, command, ending_in_one_block, load, read

if TYPE_CHECKING:
    from hasten.facts.events import Receiver


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
        loaded = load(job, **changes)
        receivers: list[Receiver] = [Progress(next_command=_after_training(job, plan, folder, tensorboard))]
        if tensorboard and _leads():
            from hasten.training.logs import TensorBoard

            receivers.append(TensorBoard(folder / "tensorboard"))
        from hasten.entry import train as train_job

        train_job(loaded, read(plan), run_dir=folder, receivers=receivers, name=job)
    except KeyboardInterrupt:
        _tell_what_is_left(folder)
        raise
    finally:
        remove_empty_folder(folder)


def _tell_what_is_left(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        typer.echo(f"\n{folder} holds what was logged, and no weights: they are saved when a run ends", err=True)


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
    return command("profile", job, plan)
