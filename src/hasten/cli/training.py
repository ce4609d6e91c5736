"""`hasten train`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.going_on import LastSaved, resuming, told_how_to_go_on
from hasten.cli.shared import JobName, PlanPath, app, command, ending_in_one_block, load, read
from hasten.errors import Misconfigured

if TYPE_CHECKING:
    from hasten.facts.events import Receiver
    from hasten.facts.saving import Saving

_SAVE_EVERY = "Save after so many steps (500) or so much time (90s, 10m, 1h). By itself: about a minute apart or more."
_UNITS = {"s": 1, "m": 60, "h": 3600}


@app.command()
@ending_in_one_block
def train(
    job: JobName,
    plan: PlanPath = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Begin with these: .safetensors, or .pt, .pth, .bin, .ckpt.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Folder for what the run leaves behind: runs/<function>-<n>."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the run in --run-dir, or the newest of this job; begin it if there is none."
        ),
    ] = False,
    allow_change: Annotated[
        list[str] | None,
        typer.Option("--allow-change", metavar="KEY", help="Resume although this has changed. May be given again."),
    ] = None,
    save_every: Annotated[str | None, typer.Option("--save-every", metavar="N", help=_SAVE_EVERY)] = None,
    keep_last: Annotated[int, typer.Option(metavar="N", min=2, help="So many of the newest checkpoints stay.")] = 2,
    keep_every: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Those at multiples of so many steps stay too.")
    ] = None,
    grace: Annotated[
        float, typer.Option(metavar="S", min=0, help="Seconds after SIGTERM until the process must be gone.")
    ] = 30.0,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.epochs.")] = None,
    max_steps: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.max_steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.batch_size.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.seed.")] = None,
    device: Annotated[str | None, typer.Option(metavar="D", help="Replaces Job.device: cpu, cuda, cuda:1.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")] = False,
) -> None:
    """Train a job, by a plan if one is given. Killed at any time, it goes on with --resume where it was.

    \b
    Examples:
      hasten train digits.py:job
      hasten train digits.py:job --plan plan.toml
      hasten train digits.py:job --resume
      hasten train digits.py:job --weights model.safetensors
      hasten train digits.py:job --epochs 2 --run-dir runs/short
    """
    changes = {"epochs": epochs, "max_steps": max_steps, "batch_size": batch_size, "seed": seed, "device": device}
    saving = _saving(save_every, keep_last, keep_every, grace)
    _train(job, plan, weights, run_dir, saving, changes, allow_change or [] if resume else None, tensorboard)


def _train(
    job: str,
    plan: Path | None,
    weights: Path | None,
    run_dir: Path | None,
    saving: Saving,
    changes: Mapping[str, object],
    allowed: Sequence[str] | None,
    tensorboard: bool,
) -> None:
    """allowed: changes of a run that is resumed; None begins one."""
    from hasten.checkpoint.files import remove_empty_folder
    from hasten.report.terminal import Progress
    from hasten.training.locate import split_name

    function = split_name(job)[1]
    if weights is not None and allowed is None:
        from hasten.training.weights_file import check_file

        check_file(weights)  # before the job is loaded, which can take minutes
    folder = _new_folder(run_dir, function) if allowed is None else _folder_to_resume(run_dir, function)
    last = LastSaved()
    try:
        loaded = load(job, **changes)
        receivers: list[Receiver] = [Progress(next_command=_after_training(job, plan, folder, tensorboard)), last]
        if tensorboard and _leads():
            from hasten.training.logs import TensorBoard

            receivers.append(TensorBoard(folder / "tensorboard"))
        from hasten import entry

        shared = {"weights": weights, "run_dir": folder, "saving": saving, "receivers": receivers, "name": job}
        with told_how_to_go_on(last, resuming(job, folder, plan, changes)):
            if allowed is None:
                entry.train(loaded, read(plan), **shared)
            else:
                entry.resume(loaded, read(plan), allow_change=allowed, **shared)
    finally:
        remove_empty_folder(folder)


def _saving(save_every: str | None, keep_last: int, keep_every: int | None, grace: float) -> Saving:
    from hasten.facts.saving import EVERY_SECONDS, Saving

    steps, seconds = None, EVERY_SECONDS
    if save_every is not None:
        unit = _UNITS.get(save_every[-1:])
        number = save_every[:-1] if unit else save_every
        if not number.isdecimal() or int(number) == 0:
            raise Misconfigured(
                f"is {save_every!r}", where="--save-every", fix="write steps, 500, or time: 90s, 10m, 1h"
            )
        steps, seconds = (None, int(number) * unit) if unit else (int(number), seconds)
    return Saving(
        every_steps=steps, every_seconds=seconds, keep_last=keep_last, keep_every=keep_every, grace_seconds=grace
    )


def _new_folder(wanted: Path | None, function: str) -> Path:
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


def _folder_to_resume(wanted: Path | None, function: str) -> Path:
    if wanted is not None:
        return wanted
    found = [path for path in Path("runs").glob(f"{function}-*") if path.name.removeprefix(f"{function}-").isdecimal()]
    if not found:
        return Path("runs") / f"{function}-1"
    return max(found, key=lambda path: int(path.name.removeprefix(f"{function}-")))


def _leads() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _after_training(job: str, plan: Path | None, folder: Path, tensorboard: bool) -> str:
    if tensorboard:
        return shlex.join(["tensorboard", "--logdir", str(folder)])
    return command("profile", job, plan)
