"""`hasten train`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hasten.cli.application import JobName, PlanPath, app, command, ending_in_one_block, load, read
from hasten.cli.nproc import Processes, launches, ranks_met, run_as_ranks
from hasten.cli.resume_line import resuming, told_how_to_go_on
from hasten.cli.run_of_job import RUNS, job_of, newest_run_of, same_job
from hasten.errors import Misconfigured
from hasten.facts.ranks import launched
from hasten.stop_signals import cleaned_up

if TYPE_CHECKING:
    from hasten.facts.events import Receiver
    from hasten.training.run_folder.run_request import Asked
    from hasten.training.saving.last_checkpoint import LastSaved

_SAVE_EVERY = "Save after so many steps (500) or so much time (90s, 10m, 1h). By itself: about a minute apart or more."
Value = TypeVar("Value")

_UNITS = {"s": 1, "m": 60, "h": 3600}

WeightsPath = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Begin with these: .safetensors, or .pt, .pth, .bin, .ckpt.")
]
RunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", metavar="DIR", help="Folder for what the run leaves behind: runs/<function>-<n>."),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on with the run in --run-dir, or the newest of this job; begin it if there is none."
    ),
]
AllowChange = Annotated[
    list[str] | None,
    typer.Option("--allow-change", metavar="KEY", help="Resume although this has changed. May be given again."),
]


@app.command()
@partial(ending_in_one_block, signals=nullcontext)  # until the run has begun, they end the process: see stop_signals
def train(
    job: JobName,
    plan: PlanPath = None,
    weights: WeightsPath = None,
    nproc: Processes = None,
    run_dir: RunDir = None,
    resume: Resume = False,
    allow_change: AllowChange = None,
    save_every: Annotated[str | None, typer.Option("--save-every", metavar="N", help=_SAVE_EVERY)] = None,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", help="So many of the newest checkpoints stay: 2, or more.")
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Those at multiples of so many steps stay too; 0: none.")
    ] = None,
    grace: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Seconds after SIGTERM until the process must be gone: 30.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.epochs.")] = None,
    max_steps: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.max_steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.batch_size.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.seed.")] = None,
    device: Annotated[str | None, typer.Option(metavar="D", help="Replaces Job.device: cpu, cuda, cuda:1.")] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard/--no-tensorboard", help="Also write TensorBoard events.")
    ] = None,
) -> None:
    """Train a job, by a plan if one is given. Killed at any time, it goes on with --resume where it was.

    With --resume, what is not given again is as it was before: plan, options of saving, replaced fields of the job.

    \b
    Examples:
      hasten train digits.py:job
      hasten train digits.py:job --plan plan.toml
      hasten train digits.py:job --resume
      hasten train digits.py:job --weights model.safetensors
      hasten train digits.py:job --epochs 2 --run-dir runs/short
      hasten train digits.py:job --run-dir runs/short --resume --epochs 4 --allow-change epochs
      hasten train digits.py:job --save-every 500 --keep-every 5000
      hasten train digits.py:job --nproc 2
      torchrun --nnodes 2 --nproc-per-node 8 -m hasten train digits.py:job
    """
    if nproc is not None and launches(nproc):
        run_as_ranks(nproc)
        return
    changes = {"epochs": epochs, "max_steps": max_steps, "batch_size": batch_size, "seed": seed, "device": device}
    given = _Given(
        plan=plan,
        weights=weights,
        changes={field: value for field, value in changes.items() if value is not None},
        saving=_saving(save_every, keep_last, keep_every, grace),
        tensorboard=tensorboard,
    )
    with ranks_met():
        if _goes_on(job, resume, run_dir):
            _go_on(job, given, run_dir, allow_change or [])
        else:
            _begin(job, given, run_dir, allow_change or [])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """What the command line says. changes: of fields of the job. saving: fields of Saving. tensorboard: None where it
    says nothing of it."""

    plan: Path | None
    weights: Path | None
    changes: Mapping[str, int | str]
    saving: Mapping[str, Any]
    tensorboard: bool | None

    def over(self, asked: Asked, job: str) -> Asked:
        """How the run is asked for now, where it was so before. Raises Misconfigured."""
        return replace(
            asked,
            name=job,
            changes={**asked.changes, **self.changes},
            saving=replace(asked.saving, **self.saving),
            tensorboard=asked.tensorboard if self.tensorboard is None else self.tensorboard,
        )

    def seen_from(self, here: Path) -> _Given:
        """The same, after a job was loaded that may have changed the working directory."""
        return replace(self, weights=None if self.weights is None else _from(here, self.weights))


def _from(here: Path, path: Path) -> Path:
    """A path that was given in this working directory, as it can be followed in the present one."""
    try:
        return path if Path.cwd() == here else here / path
    except FileNotFoundError:  # torch asks for it as well, and would fail later
        what = "the working directory is gone, which the job was in when it was loaded"
        raise Misconfigured(what, fix="let the job change into one that stays: os.chdir(…)") from None


def _begin(job: str, given: _Given, run_dir: Path | None, allowed: Sequence[str]) -> None:
    from hasten.training.run_folder.run_request import Asked
    from hasten.training.setup.load_job import split_name

    if allowed:
        fix = "add --resume to go on with a run; one that begins may have any configuration"
        raise Misconfigured("only a run that goes on can have changed", where="--allow-change", fix=fix)
    function, asked = split_name(job)[1], given.over(Asked(), job)
    if given.weights is not None:
        from hasten.training.weights.weights_file import check_file

        check_file(given.weights)  # before the job is loaded, which can take minutes
    folder, here = _new_folder(run_dir, function), Path.cwd()
    with cleaned_up(partial(_remove_unused, here / folder)):
        plan, loaded = read(given.plan), load(job, **asked.changes)
        folder, given = _from(here, folder), given.seen_from(here)
        last, receivers = _receivers(asked, given.plan, folder)
        from hasten import entry

        way_on = resuming(job, folder)
        shared = {"weights": given.weights, "run_dir": folder, "receivers": receivers, "way_on": way_on}
        with told_how_to_go_on(last, folder, way_on):
            entry.begin(loaded, plan, asked, **shared)


def _go_on(job: str, given: _Given, run_dir: Path | None, allowed: Sequence[str]) -> None:
    """All that can be refused before the job is loaded is looked at before: that can take minutes."""
    from hasten.training.run_folder.run_request import Asked

    given.over(Asked(), job)  # which refuses what no run could have, before there is a folder
    folder, here = _by_the_leader(lambda: _folder_to_go_on_in(job, run_dir)), Path.cwd()
    with cleaned_up(partial(_remove_unused, here / folder)):
        asked, told = _by_the_leader(lambda: _asked_now(job, given, folder))
        plan, loaded = read(given.plan), load(job, **asked.changes)
        folder, given = _from(here, folder), given.seen_from(here)
        last, receivers = _receivers(asked, given.plan, folder)
        from hasten import entry

        way_on = resuming(job, folder, allowed)
        shared = {"weights": given.weights, "run_dir": folder, "receivers": receivers, "way_on": way_on}
        with told_how_to_go_on(last, folder, way_on):
            entry.go_on(loaded, plan, asked, allow_change=allowed, told=told, **shared)


def _remove_unused(folder: Path) -> None:
    """The folder of a run that did not come to write anything."""
    from hasten.checkpoint.files import remove_empty_folder

    if launched().all.leads:
        remove_empty_folder(folder)


def _goes_on(job: str, wanted: bool, folder: Path | None) -> bool:
    """Whether any of the processes was asked to; or a launcher has started all anew, which means the same run."""
    if not launched().all.many and not launched().restarts:
        return wanted
    from hasten.parallel.launch.process_group import on_any
    from hasten.training.run_folder.restarted import started_anew

    return on_any(wanted) or started_anew(lambda: folder or newest_run_of(job))


def _by_the_leader(make: Callable[[], Value]) -> Value:
    """What it gives on the first of several ranks, on all of them."""
    if not launched().all.many:
        return make()
    from hasten.parallel.launch.process_group import from_the_leader

    return from_the_leader(make)


def _folder_to_go_on_in(job: str, wanted: Path | None) -> Path:
    from hasten.checkpoint.files import make_numbered_folder
    from hasten.training.run_folder import folder_checks
    from hasten.training.setup.load_job import split_name

    folder = wanted or newest_run_of(job) or make_numbered_folder(RUNS, split_name(job)[1])
    folder_checks.reopen(folder)
    return folder


def _asked_now(job: str, given: _Given, folder: Path) -> tuple[Asked, list[str]]:
    """How the run in the folder is asked for now, and what a person is to know of that."""
    from hasten.training.run_folder.run_directory import RunFolder
    from hasten.training.run_folder.run_request import Asked

    _check_weights(given.weights, folder)
    before, told = RunFolder(folder).asked()
    now, begun_by = given.over(before, job), job_of(folder)
    notes = [*told]
    if begun_by is not None and not same_job(begun_by, job):
        notes.append(f"the run was begun by {begun_by}, and goes on by {job}")
    said = given.over(Asked(), job).options
    taken = [f"{option} {value}".strip() for option, value in now.options.items() if option not in said]
    if taken:
        notes.append(f"as the run was asked for before: {' '.join(taken)}")
    return now, notes


def _check_weights(weights: Path | None, folder: Path) -> None:
    """Where the run is to begin with them: a run with a checkpoint has weights of its own."""
    from hasten.checkpoint.saved_checkpoint import checkpoints_in
    from hasten.training.run_folder.folder_names import CHECKPOINTS
    from hasten.training.weights.weights_file import check_file

    if weights is not None and not checkpoints_in(folder / CHECKPOINTS):
        check_file(weights)


def _receivers(asked: Asked, plan: Path | None, folder: Path) -> tuple[LastSaved, list[Receiver]]:
    from hasten.report.terminal.training_progress import Progress
    from hasten.training.saving.last_checkpoint import LastSaved

    last = LastSaved()
    following = _after_training(asked.name, plan, folder, asked.tensorboard)
    receivers: list[Receiver] = [Progress(next_command=following), last]
    if asked.tensorboard and launched().all.leads:
        from hasten.training.reporting.logs import TensorBoard

        receivers.append(TensorBoard(folder / "tensorboard"))
    return last, receivers


def _saving(
    save_every: str | None, keep_last: int | None, keep_every: int | None, grace: float | None
) -> dict[str, Any]:
    """The fields of Saving that are given. Raises Misconfigured."""
    from hasten.facts.saving import EVERY_SECONDS, Saving

    given: dict[str, Any] = {}
    if save_every is not None:
        unit = _UNITS.get(save_every[-1:])
        number = save_every[:-1] if unit else save_every
        if not number.isdecimal() or int(number) == 0:
            raise Misconfigured(
                f"is {save_every!r}", where="--save-every", fix="write steps, 500, or time: 90s, 10m, 1h"
            )
        given["every_steps"] = None if unit else int(number)
        given["every_seconds"] = int(number) * unit if unit else EVERY_SECONDS
    if keep_every is not None:
        given["keep_every"] = keep_every or None
    given |= {} if grace is None else {"grace_seconds": grace}
    if keep_last is not None:
        given["keep_last"] = keep_last
        try:
            Saving(keep_last=keep_last)
        except Misconfigured as error:
            raise Misconfigured(error.what, where="--keep-last", fix=error.fix) from None
    return given


def _new_folder(wanted: Path | None, function: str) -> Path:
    """The folder of this run, made and proven writable before anything slow begins."""
    from hasten.checkpoint.files import check_writable, make_numbered_folder
    from hasten.training.run_folder.folder_checks import make_new

    if not launched().all.leads:
        return wanted or RUNS  # the first process makes it, and writes
    if wanted is not None:
        make_new(wanted)
        return wanted
    check_writable(folder := make_numbered_folder(RUNS, function))
    return folder


def _after_training(job: str, plan: Path | None, folder: Path, tensorboard: bool) -> str:
    if tensorboard:
        return shlex.join(["tensorboard", "--logdir", str(folder)])
    return command("profile", job, plan)
