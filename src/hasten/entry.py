"""Training from Python: the engine with what a person expects around it.

`train` runs a whole job; `prepare` returns a run whose loop the caller writes; `evaluate` needs no run; `tune` finds a
plan. Like the command line, this module may import every room; none may import it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.checkpoint.folders.process_folder import remove_what_the_dead_left
from hasten.checkpoint.locks.run_lock import run_lock
from hasten.data.cache.cached_source import Watcher
from hasten.errors import Misconfigured
from hasten.facts.events import AnyReceiver, Noticed, Preparing, Receiver
from hasten.facts.job import RECEIVERS_ARE, Job, no_receiver
from hasten.facts.plan import Plan
from hasten.facts.plan_file import read_plan
from hasten.facts.saving import Saving
from hasten.parallel.collectives import present_ranks
from hasten.parallel.launch.process_group import failing_as_one, from_the_leader, joined
from hasten.training.evaluate import Evaluation
from hasten.training.evaluation.evaluate_weights import Data, evaluate_weights
from hasten.training.failures.as_failure import cause_of
from hasten.training.loop import Result, train_run
from hasten.training.reporting.logs import Called, Several, as_receiver
from hasten.training.run import Run
from hasten.training.run_folder.folder_checks import make_new, reopen
from hasten.training.run_folder.restarted import was_restarted
from hasten.training.run_folder.run_directory import RunFolder
from hasten.training.run_folder.run_request import RunRequest
from hasten.training.saving.recovery import Recovered
from hasten.training.saving.saved_run import FollowerRun, SavedRun, finished
from hasten.training.setup.process_options import make_first_calls
from hasten.training.weights.initial_weights import InitialWeights, begun_with

if TYPE_CHECKING:
    from hasten.tuning.search_process import Allow


def train(
    job: Job,
    plan: Plan | str | Path | None = None,
    *,
    weights: str | Path | None = None,
    run_dir: str | Path | None = None,
    saving: Saving | None = None,
    receivers: Sequence[AnyReceiver] | None = None,
    name: str = "",
) -> Result:
    """Train a job by a plan, to its planned end or an early stop.

    job: what to train, see hasten.Job.
    plan: a Plan, the path of a plan.toml, or None for the baseline.
    weights: file of weights to begin with, for the job's own model: see hasten.read_weights. None: the model's own
        initialisation.
    run_dir: folder for plan, environment, metrics, checkpoints and weights; it is created, and must be empty. None
        writes no file.
    saving: when checkpoints are saved, and which are kept; None: Saving().
    receivers: of the run's events (hasten.facts.events). Functions of one event are called beside the terminal's
        progress; objects with log(event) and close() replace it; [] shows nothing. Job.receivers are called as well.
    name: of the job, in logs and files.

    Raises HastenError, whose classes and exit codes hasten.errors lists. What the job's own code raises is not wrapped,
    SystemExit included. With a run_dir, the last complete step is saved first; and SIGINT, SIGTERM, SIGHUP, SIGXCPU and
    SIGUSR1 save and end the run at its next step, as KeyboardInterrupt. A process that a launcher such as torchrun has
    restarted resumes its run.
    """
    with joined(), failing_as_one(cause_of):
        if run_dir is not None and was_restarted(lambda: Path(run_dir)):
            shared = {"weights": weights, "run_dir": run_dir, "saving": saving, "receivers": receivers, "name": name}
            return resume(job, plan, **shared)
        asked = RunRequest(name=name, saving=saving or Saving())
        return begin(job, plan, asked, weights=weights, run_dir=run_dir, receivers=receivers)


def resume(
    job: Job,
    plan: Plan | str | Path | None = None,
    *,
    weights: str | Path | None = None,
    run_dir: str | Path,
    allow_change: Sequence[str] = (),
    saving: Saving | None = None,
    receivers: Sequence[AnyReceiver] | None = None,
    name: str = "",
) -> Result:
    """Resume a run from its newest verified checkpoint, or from its beginning if it has none. A complete run ends at
    once.

    plan, saving, name: None, or an empty name, takes the run's own.
    weights: used only if the run starts from its beginning; None takes the weights that it began with.
    run_dir: the run's folder.
    allow_change: keys of the configuration that may differ from the run's although that changes training.

    Otherwise as train. Raises Misconfigured also for a change that is not allowed, and if another process trains there.
    """
    with joined(), failing_as_one(cause_of):
        before = from_the_leader(RunFolder(Path(run_dir)).asked)
        # Replaced fields that this job has too are recorded again, so that the command line resumes the same run.
        changes = {field: value for field, value in before.changes.items() if getattr(job, field) == value}
        asked = replace(before, name=name or before.name, changes=changes, saving=saving or before.saving)
        shared = {"weights": weights, "run_dir": run_dir, "receivers": receivers}
        return resume_run(job, plan, asked, allow_change=allow_change, **shared)


def begin(
    job: Job,
    plan: Plan | str | Path | None,
    asked: RunRequest,
    *,
    weights: str | Path | None,
    run_dir: str | Path | None,
    receivers: Sequence[AnyReceiver] | None,
    way_on: str | None = None,
) -> Result:
    """Train as train does, and record the options. way_on: the command that resumes the run."""
    with joined(), failing_as_one(cause_of), ExitStack() as stack:
        kept: SavedRun | FollowerRun | None = None
        folder = None
        if from_the_leader(lambda: run_dir is not None):
            if run_dir is None or not present_ranks().leads:
                kept = FollowerRun(found=None, saving=asked.saving)
            else:
                make_new(Path(run_dir))
                folder = RunFolder(Path(run_dir))
                lock = stack.enter_context(run_lock(folder.path))
                way_on = way_on or _way_on(folder)
                kept = SavedRun(folder=folder, lock=lock, found=None, asked=asked, way_on=way_on, say=_say)
        given = stack.enter_context(begun_with(weights, None if folder is None else folder.home))
        return _train(job, plan, asked.name, receivers, given, kept)


def resume_run(
    job: Job,
    plan: Plan | str | Path | None,
    asked: RunRequest,
    *,
    weights: str | Path | None,
    run_dir: str | Path,
    allow_change: Sequence[str],
    receivers: Sequence[AnyReceiver] | None,
    notes: Sequence[str] = (),
    way_on: str | None = None,
) -> Result:
    """Resume as resume does, and record the options. notes: for the user. way_on: the command that resumes the run."""
    with joined(), failing_as_one(cause_of), ExitStack() as stack:
        kept: SavedRun | FollowerRun
        if present_ranks().leads:
            reopen(Path(run_dir))
            folder = RunFolder(Path(run_dir))
            lock = stack.enter_context(run_lock(folder.path))
            folder.clean()
            found = Recovered.of(folder.store, allow_change)
            resumes = found.loaded is not None
            _, begun_by = from_the_leader(lambda: (found.name, folder.plan()))
            if resumes and weights is not None:
                notes = (*notes, f"{weights} was not read: the run resumes with its own weights")
            found = replace(found, notices=(*found.notices, *notes))
            way_on = way_on or _way_on(folder)
            kept = SavedRun(folder=folder, lock=lock, found=found, asked=asked, way_on=way_on, say=_say)
            home = folder.home
        else:
            name, begun_by = from_the_leader(lambda: (None, None))  # which only the leader calls
            found = Recovered.named(RunFolder(Path(run_dir)).store, name, allow_change)
            kept, resumes, home = FollowerRun(found=found, saving=asked.saving), name is not None, None
        given = None if resumes else stack.enter_context(begun_with(weights, home))
        return _train(job, begun_by if plan is None else plan, asked.name, receivers, given, kept)


def _train(
    job: Job,
    plan: Plan | str | Path | None,
    name: str,
    receivers: Sequence[AnyReceiver] | None,
    given: InitialWeights | None,
    kept: SavedRun | FollowerRun | None,
) -> Result:
    """given: weights that the run begins with. kept: None writes no file."""
    remove_what_the_dead_left()
    shown = _receivers(receivers, job)
    # Closed also if no run begins: one of them may show a bar.
    with closing(Several(shown, _say)) as outward:
        watcher = Watcher(
            lambda text: outward.log(Noticed(text=text)),
            lambda done, samples: outward.log(Preparing(done=done, samples=samples)),
        )
        own = job if given is None else given.within(job)
        with prepare(own, plan, name=name, watcher=watcher if shown else None) as run:
            run.notices += outward.dropped
            run.notices += given.notices if given is not None else []
            if kept is not None:
                result = kept.train(run, outward)
            else:
                result = train_run(run, outward)
                outward.log(finished(result, None))
    return replace(result, job=job)


def prepare(job: Job, plan: Plan | str | Path | None = None, *, name: str = "", watcher: Watcher | None = None) -> Run:
    """A run built from a job and a plan, for your own loop; see hasten.Run.

    watcher: receives the progress of building a cache; None leaves it to the run's notices.
    """
    make_first_calls()
    return Run(job, _read(plan), name=name, watcher=watcher)


def evaluate(
    job: Job,
    weights: str | Path,
    plan: Plan | str | Path | None = None,
    *,
    data: Data = "valid",
    batch_size: int | None = None,
) -> Evaluation:
    """The job's loss and metrics with the weights of a file, on one device. The numbers are those that an evaluation of
    a run of this job and plan gives. No optimizer is built.

    weights: file of the weights, as of train.
    plan: that the weights were trained by, of which dtypes and memory layouts count; None for the baseline.
    data: the field of the job to evaluate, "valid" or "train".
    batch_size: None takes that of the plan or the data, else the training's.

    Otherwise as train. An evaluation of more than two seconds shows its progress on sys.stderr. Returns results by
    name, seconds, and the batch size that fitted into memory.
    """
    from hasten.report.terminal.progress_bar import ProgressBar

    make_first_calls()
    with closing(ProgressBar("evaluating")) as waiting:
        return evaluate_weights(job, Path(weights), _read(plan), data, batch_size, waiting).evaluation


def tune(
    job: Callable[[], Job] | str,
    *,
    seconds: float = 60.0,
    allow: Allow = "statistics",
    output: str | PathLike[str] | None = None,
    busy: bool = False,
) -> Plan:
    """The plan that `hasten tune` finds for a job. Progress and result go to sys.stderr, or are drawn in a notebook.

    job: a function of an imported file or module that returns the job, or its name: "job.py:job". Trials build the job
        in processes of their own, so a function of a notebook, a lambda or a Job is refused.
    seconds: about how long the search takes; trials of compile take additional time.
    allow: the most that a choice may change: "bits", "rounding", "statistics" or "training".
    busy: measure although other programs use the CPU.
    output: the plan file to write, with the file of trials beside it. None writes no file.

    KeyboardInterrupt ends the search, and returns what was proven by then; a plan without choices where nothing was.
    Raises HastenError as the command does.
    """
    from hasten.report.terminal.search_progress import SearchElsewhere
    from hasten.tuning.search_process import found_apart

    with closing(SearchElsewhere()) as screen:
        found = found_apart(job, seconds=seconds, allow=allow, output=output, busy=busy, show=screen.line)
        screen.result(found.answer.get("sentence", "Interrupted"), found.answer.get("why", ""))
    return found.plan


def _read(plan: Plan | str | Path | None) -> Plan:
    return read_plan(Path(plan)) if isinstance(plan, str | Path) else plan or Plan()


def _receivers(given: Sequence[AnyReceiver] | None, job: Job) -> list[Receiver]:
    """What train() shows, and the job's own. Only the leader has any."""
    if given is not None and (wrong := no_receiver(given)):
        raise Misconfigured(wrong, where="receivers", fix=RECEIVERS_ARE)
    if not present_ranks().leads:
        return []
    found = [as_receiver(each) for each in given or ()]
    if given is None or (given and all(isinstance(each, Called) for each in found)):
        from hasten.report.terminal.training_progress import Progress

        found.insert(0, Progress())
    return [*found, *map(as_receiver, job.receivers)]


def _way_on(folder: RunFolder) -> str:
    return f"hasten.resume(job, run_dir={str(folder.path)!r})"


def _say(text: str) -> None:
    from hasten.report.terminal.output import write_line

    with suppress(OSError, ValueError):  # standard error may be closed
        write_line(sys.stderr, text)
