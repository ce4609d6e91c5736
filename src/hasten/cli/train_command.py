"""`hasten train`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hasten.cli.application import (
    AsJson,
    JobName,
    PlanPath,
    Quiet,
    SetOption,
    app,
    command,
    ends_with_exit_code,
    job_options,
    load,
    read,
)
from hasten.cli.nproc import Processes, as_one_of_the_ranks, launches, run_as_ranks
from hasten.cli.run_history import (
    RUNS,
    job_of,
    newest_run_of,
    resume_command,
    same_job,
    says_how_to_resume,
    with_receivers_beside,
)
from hasten.errors import Misconfigured
from hasten.facts.ranks import launched
from hasten.facts.saving import EVERY_SECONDS
from hasten.report.display import percent
from hasten.report.sentence import run_sentence
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import Lines
from hasten.report.terminal.training_progress import Progress
from hasten.stop_signals import cleaned_up

if TYPE_CHECKING:
    from hasten.facts.events import AnyReceiver, Finished
    from hasten.facts.job import Job
    from hasten.facts.plan import Plan
    from hasten.training.run_folder.run_request import RunRequest
    from hasten.training.saving.last_checkpoint import LastSaved
    from hasten.training.setup.job_options import JobOptions

_SAVE_EVERY = "Steps (500) or time (90s, 10m, 1h) between two saves; default: about a minute."
SHORT_SECONDS = 10.0  # of a run that is too short to say that other programs have slowed it
_UNITS = {"s": 1, "m": 60, "h": 3600}
Value = TypeVar("Value")

WeightsPath = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Start from the weights in FILE: .safetensors, or .pt, .pth, .bin, .ckpt."),
]
RunDir = Annotated[
    Path | None, typer.Option("--run-dir", metavar="DIR", help="Folder of the run; default: runs/<function>-<n>.")
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Resume the run in --run-dir, or the newest run of this job; start one if there is none."
    ),
]
AllowChange = Annotated[
    list[str] | None,
    typer.Option("--allow-change", metavar="KEY", help="Resume although this setting has changed. May be repeated."),
]

KeepLast = Annotated[
    int | None, typer.Option(metavar="N", min=2, help="How many of the newest checkpoints to keep: 2 or more.")
]
KeepEvery = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Also keep checkpoints at multiples of N steps; 0: none.")
]
Grace = Annotated[
    float | None,
    typer.Option(metavar="S", min=0, help="Seconds between SIGTERM and the end of the process; default: 30."),
]
ToTensorBoard = Annotated[
    bool | None, typer.Option("--tensorboard/--no-tensorboard", help="Also write TensorBoard events.")
]
Receivers = Annotated[
    list[str] | None,
    typer.Option("--receiver", metavar="FUNCTION", help="Also give events to path/file.py:function. May be repeated."),
]


@app.command()
@partial(ends_with_exit_code, signals=nullcontext)  # until the run has begun, they end the process: see stop_signals
def train(
    context: typer.Context,
    job: JobName,
    plan: PlanPath = None,
    settings: SetOption = None,
    weights: WeightsPath = None,
    nproc: Processes = None,
    run_dir: RunDir = None,
    resume: Resume = False,
    allow_change: AllowChange = None,
    save_every: Annotated[str | None, typer.Option("--save-every", metavar="N", help=_SAVE_EVERY)] = None,
    keep_last: KeepLast = None,
    keep_every: KeepEvery = None,
    grace: Grace = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.epochs.")] = None,
    max_steps: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.max_steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.batch_size.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Replaces Job.seed.")] = None,
    device: Annotated[str | None, typer.Option(metavar="D", help="Replaces Job.device: cpu, cuda, cuda:1.")] = None,
    tensorboard: ToTensorBoard = None,
    receiver: Receivers = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a job, with a plan if you give one. If it is killed, --resume continues from its newest checkpoint.

    With --resume, options that you do not repeat are taken from the run: plan, saving, replaced fields of the job,
    --set, and what stands behind --, which is sys.argv[1:] of the job's file.

    \b
    Examples:
      hasten train digits.py:job
      hasten train digits.py:job --plan plan.toml
      hasten train digits.py:job --resume
      hasten train digits.py:job --weights model.safetensors
      hasten train digits.py:job --set lr=0.1 --set layers=3
      hasten train digits.py:job -- --lr 0.1
      hasten train digits.py:job --epochs 2 --run-dir runs/short
      hasten train digits.py:job --run-dir runs/short --resume --epochs 4 --allow-change epochs
      hasten train digits.py:job --save-every 500 --keep-every 5000
      hasten train digits.py:job --receiver send.py:to_wandb
      hasten train digits.py:job --json
      hasten train digits.py:job --nproc 2
      torchrun --nnodes 2 --nproc-per-node 8 -m hasten train digits.py:job
    """
    if nproc is not None and launches(nproc):
        run_as_ranks(nproc)
        return
    given = _Given(
        output=CommandOutput(quiet=quiet, as_json=as_json),
        plan=plan,
        options=job_options(context, settings),
        weights=weights,
        changes=_set(epochs=epochs, max_steps=max_steps, batch_size=batch_size, seed=seed, device=device),
        saving=_saving(save_every, keep_last, keep_every, grace),
        tensorboard=tensorboard,
        receivers=tuple(receiver or ()),
    )
    with given.output, as_one_of_the_ranks():
        (_resume if _resumes(job, resume, run_dir) else _begin)(job, given, run_dir, allow_change or [])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Given:
    """The options of the command line. options: of the job's function and file. changes: of fields of the job. saving:
    fields of Saving. tensorboard: None where the option is absent."""

    output: CommandOutput
    plan: Path | None
    options: JobOptions
    weights: Path | None
    changes: Mapping[str, int | str]
    saving: Mapping[str, Any]
    tensorboard: bool | None
    receivers: tuple[str, ...]

    def over(self, asked: RunRequest, job: str) -> RunRequest:
        """The options of a run, with these in place of its recorded ones. Raises Misconfigured."""
        return replace(
            asked,
            name=job,
            changes={**asked.changes, **self.changes},
            job_options=self.options.over(asked.job_options),
            saving=replace(asked.saving, **self.saving),
            tensorboard=asked.tensorboard if self.tensorboard is None else self.tensorboard,
            receivers=self.receivers or asked.receivers,
        )


def _set(**fields: int | str | None) -> dict[str, int | str]:
    """Those that were given."""
    return {name: value for name, value in fields.items() if value is not None}


def _begin(job: str, given: _Given, run_dir: Path | None, allowed: Sequence[str]) -> None:
    from hasten.training.run_folder.run_request import RunRequest
    from hasten.training.setup.load_job import split_name

    if allowed:
        fix = "add --resume, or remove --allow-change"
        raise Misconfigured("has no effect on a new run", where="--allow-change", fix=fix)
    function, asked = split_name(job)[1], given.over(RunRequest(), job)
    if given.weights is not None:
        from hasten.training.weights.weights_file import check_file

        check_file(given.weights)  # before the job is loaded, which can take minutes
    folder = _new_folder(run_dir, function)
    with (
        cleaned_up(partial(_remove_unused, Path.cwd() / folder)),
        _loaded(job, given, asked, folder) as (loaded, planned, shared),
    ):
        from hasten import entry

        entry.begin(loaded, planned, asked, **shared)


def _resume(job: str, given: _Given, run_dir: Path | None, allowed: Sequence[str]) -> None:
    """Everything that can be refused before the job is loaded is checked first: loading can take minutes."""
    from hasten.training.run_folder.run_request import RunRequest

    given.over(RunRequest(), job)  # refuses what no run could have, before there is a folder
    folder = _by_the_leader(lambda: _folder_to_resume(job, run_dir))
    with cleaned_up(partial(_remove_unused, Path.cwd() / folder)):
        asked, notes = _by_the_leader(lambda: _asked_now(job, given, folder))
        with _loaded(job, given, asked, folder, allowed) as (loaded, planned, shared):
            from hasten import entry

            entry.resume_run(loaded, planned, asked, allow_change=allowed, notes=notes, **shared)


@contextmanager
def _loaded(
    job: str, given: _Given, asked: RunRequest, folder: Path, allowed: Sequence[str] = ()
) -> Iterator[tuple[Job, Plan | None, dict[str, Any]]]:
    """The job, its plan, and what to begin and to resume a run have in common. What ends the run says how to resume."""
    from hasten.training.setup.load_job import split_receiver

    here = Path.cwd()
    functions = [(here / place, name) for place, name in map(split_receiver, asked.receivers)]
    planned, loaded = read(given.plan), load(job, asked.job_options, **asked.changes)
    folder = _from(here, folder)
    weights = None if given.weights is None else _from(here, given.weights)
    last, receivers = _receivers(asked, given, folder, functions)
    way_on = resume_command(job, folder, allowed)
    with says_how_to_resume(last, way_on):
        yield loaded, planned, {"weights": weights, "run_dir": folder, "receivers": receivers, "way_on": way_on}


def _from(here: Path, path: Path) -> Path:
    """A path relative to `here`, as seen from the working directory, which the job's code may have changed."""
    return path if Path.cwd() == here else here / path


def _remove_unused(folder: Path) -> None:
    """The folder of a run that ended before it wrote anything."""
    from hasten.checkpoint.files import remove_empty_folder

    if launched().all.leads:
        remove_empty_folder(folder)


def _resumes(job: str, wanted: bool, folder: Path | None) -> bool:
    """Whether any of the processes was given --resume, or a launcher has restarted all of them."""
    if not launched().all.many and not launched().restarts:
        return wanted
    from hasten.parallel.launch.process_group import on_any
    from hasten.training.run_folder.restarted import was_restarted

    return on_any(wanted) or was_restarted(lambda: folder or newest_run_of(job))


def _by_the_leader(make: Callable[[], Value]) -> Value:
    """The leader's value, on every rank."""
    if not launched().all.many:
        return make()
    from hasten.parallel.launch.process_group import from_the_leader

    return from_the_leader(make)


def _folder_to_resume(job: str, wanted: Path | None) -> Path:
    from hasten.checkpoint.files import make_numbered_folder
    from hasten.training.run_folder import folder_checks
    from hasten.training.setup.load_job import split_name

    folder = wanted or newest_run_of(job) or make_numbered_folder(RUNS, split_name(job)[1])
    folder_checks.reopen(folder)
    return folder


def _asked_now(job: str, given: _Given, folder: Path) -> tuple[RunRequest, list[str]]:
    """The options of the run in the folder, and notes for the user about them."""
    from hasten.checkpoint.saved_checkpoint import checkpoints_in
    from hasten.training.run_folder.folder_names import CHECKPOINTS
    from hasten.training.run_folder.run_directory import RunFolder
    from hasten.training.run_folder.run_request import RunRequest
    from hasten.training.weights.weights_file import check_file

    if given.weights is not None and not checkpoints_in(folder / CHECKPOINTS):
        check_file(given.weights)  # with a checkpoint, they are not read
    before, others = with_receivers_beside(RunFolder(folder).asked(), job)
    now, begun_by = given.over(before, job), job_of(folder)
    notes = [] if given.receivers else others
    if begun_by is not None and not same_job(begun_by, job):
        notes.append(f"the run was started by {begun_by} and is resumed by {job}")
    repeated = given.over(RunRequest(), job).options
    taken = [f"{option} {value}".strip() for option, value in now.options.items() if option not in repeated]
    if taken:
        notes.append(f"options taken from the run: {' '.join(taken)}")
    return now, notes


def _receivers(
    asked: RunRequest, given: _Given, folder: Path, functions: Sequence[tuple[Path, str]]
) -> tuple[LastSaved, list[AnyReceiver]]:
    from hasten.training.saving.last_checkpoint import LastSaved

    following = command("profile", asked.name, given.plan, asked.job_options)
    if asked.tensorboard:
        following = shlex.join(["tensorboard", "--logdir", str(folder)])
    last = LastSaved(folder)
    receivers: list[AnyReceiver] = [_progress(given.output, folder, following), last]
    if asked.tensorboard and launched().all.leads:
        from hasten.training.reporting.logs import TensorBoard

        receivers.append(TensorBoard(folder / "tensorboard"))
    if launched().all.leads:
        from hasten.training.setup.load_job import load_receiver

        receivers += [load_receiver(*each) for each in functions]
    return last, receivers


def _progress(output: CommandOutput, folder: Path, following: str) -> Progress:
    """The log on standard output; with --json, the answer is there and the log on standard error."""
    if not output.as_json:
        return Progress(next_command=following, quiet=output.quiet, more=_busy_from_now_on())

    def answer(end: Finished) -> None:
        output.result(run_sentence(end), [], following, {"run": folder, **asdict(end)})

    return Progress(sys.stderr, quiet=output.quiet, result=answer)


def _busy_from_now_on() -> Callable[[], Lines]:
    """At the end of the run, a note where other programs took time from it. Ranks are no other programs to each other,
    and say nothing."""
    from hasten.measure.processor_load import LoadClock
    from hasten.tuning.trials.process_tree import processor_seconds

    clock = LoadClock(lambda: processor_seconds(os.getpid()))

    def note() -> Lines:
        load = clock.load()
        if launched().all.many or load.seconds < SHORT_SECONDS or not load.disturbs:
            return []
        return [("note", f"other programs used {percent(load.share)} of the CPU: a quiet machine trains faster")]

    return note


def _saving(
    save_every: str | None, keep_last: int | None, keep_every: int | None, grace: float | None
) -> dict[str, Any]:
    """The fields of Saving that are given. Raises Misconfigured."""
    given: dict[str, Any] = {}
    if save_every is not None:
        unit = _UNITS.get(save_every[-1:])
        number = save_every[:-1] if unit else save_every
        if not number.isdecimal() or int(number) == 0:
            fix = "write steps, 500, or time: 90s, 10m, 1h"
            raise Misconfigured(f"is {save_every!r}", where="--save-every", fix=fix)
        given["every_steps"] = None if unit else int(number)
        given["every_seconds"] = int(number) * unit if unit else EVERY_SECONDS
    if keep_every is not None:
        given["keep_every"] = keep_every or None
    others = {"grace_seconds": grace, "keep_last": keep_last}
    return given | {name: value for name, value in others.items() if value is not None}


def _new_folder(wanted: Path | None, function: str) -> Path:
    """The folder of this run, created and checked to be writable before anything slow begins."""
    from hasten.checkpoint.files import check_writable, make_numbered_folder
    from hasten.training.run_folder.folder_checks import make_new

    if not launched().all.leads:
        return wanted or RUNS  # the first process creates it, and writes
    if wanted is not None:
        make_new(wanted)
        return wanted
    check_writable(folder := make_numbered_folder(RUNS, function))
    return folder
