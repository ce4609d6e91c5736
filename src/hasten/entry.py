"""Training from Python: the engine with what a person expects around it.

`train` runs a whole job, `prepare` hands out a run whose loop is the caller's own. Like the command line, this module
may import every room; none may import it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from hasten.checkpoint.run_lock import run_lock
from hasten.checkpoint.temporary import remove_what_the_dead_left
from hasten.data.keeping import Watcher
from hasten.errors import Misconfigured
from hasten.facts.events import Finished, Noticed, Preparing, Receiver
from hasten.facts.job import Job
from hasten.facts.plan import Plan
from hasten.facts.plan_file import read_plan
from hasten.facts.saving import Saving
from hasten.parallel.replicate import present_ranks
from hasten.training.configuration import configuration_of
from hasten.training.given_weights import GivenWeights, begun_with
from hasten.training.keeping import Keeping
from hasten.training.logs import Several
from hasten.training.loop import Result, train_run
from hasten.training.recovered import Recovered
from hasten.training.run import Run
from hasten.training.run_folder import RunFolder
from hasten.training.saver import Saver
from hasten.training.stop_request import signals_as_requests


def train(
    job: Job,
    plan: Plan | str | Path | None = None,
    *,
    weights: str | Path | None = None,
    run_dir: str | Path | None = None,
    saving: Saving | None = None,
    receivers: Sequence[Receiver] | None = None,
    name: str = "",
) -> Result:
    """Train a job by a plan, to its planned end or an early stop.

    plan: a Plan, the path of a plan.toml, or None for the job as it is.
    weights: file to begin with, of the job's own model: see hasten.read_weights. None begins as the model is made.
    run_dir: folder for plan, environment, metrics, checkpoints and weights; it is made, and must be empty. None writes
        no file.
    saving: when checkpoints are saved, and which stay; None is Saving().
    receivers: of the run's events (hasten.facts.events); None shows progress on the terminal.
    name: of the job, as it is shown and written down.

    Raises HastenError, whose classes and exit codes hasten.errors lists; what the job's own code raises comes as it is.
    With a run_dir, SIGINT and SIGTERM end the run at its next step, saved: as KeyboardInterrupt.
    """
    folder = RunFolder.create(Path(run_dir)) if run_dir is not None and present_ranks().leads else None
    place = folder.path if folder is not None else None
    with nullcontext() if place is None else run_lock(place), begun_with(weights, place) as given:
        return _train(job, plan, folder, None, saving or Saving(), receivers, name, given)


def resume(
    job: Job,
    plan: Plan | str | Path | None = None,
    *,
    weights: str | Path | None = None,
    run_dir: str | Path,
    allow_change: Sequence[str] = (),
    saving: Saving | None = None,
    receivers: Sequence[Receiver] | None = None,
    name: str = "",
) -> Result:
    """Go on with a run from its newest checkpoint that is whole, as if it had never ended; from its beginning when it
    has none, or when nothing is in the folder yet. A run that is complete is completed again.

    plan: None takes the one that the run began with.
    weights: to begin with, where it begins; None takes those that it began with before. They are not read otherwise.
    run_dir: its folder.
    allow_change: keys of the configuration that may differ from the run's own although that changes what is trained.

    Else as train. Raises Misconfigured also for a change that is not allowed, and when another process trains there.
    """
    if present_ranks().many:
        raise Misconfigured(
            "a run of several processes cannot be resumed yet", where="WORLD_SIZE", fix="resume it in one process"
        )
    folder = RunFolder.reopen(Path(run_dir))
    with run_lock(folder.path):
        folder.clean()
        found = Recovered.of(folder.store, allow_change)
        plan = folder.plan() if plan is None else plan
        if found.loaded is None:
            with begun_with(weights, folder.path) as given:
                return _train(job, plan, folder, found, saving or Saving(), receivers, name, given)
        if weights is not None:
            told = f"{weights} was not read: the run goes on with weights of its own"
            found = replace(found, told=(*found.told, told))
        return _train(job, plan, folder, found, saving or Saving(), receivers, name, None)


def _train(
    job: Job,
    plan: Plan | str | Path | None,
    folder: RunFolder | None,
    found: Recovered | None,
    saving: Saving,
    receivers: Sequence[Receiver] | None,
    name: str,
    given: GivenWeights | None,
) -> Result:
    remove_what_the_dead_left()
    shown = _receivers(receivers)
    try:
        begun = job if given is None else given.within(job)
        prepared = prepare(begun, plan, name=name, watcher=_watcher(shown, receivers))
    except BaseException:
        Several(shown).close()  # one may show a bar
        raise
    with prepared as run, ExitStack() as open_files:
        outward = Several(shown)
        open_files.callback(lambda: outward.close())
        run.notices += given.notices if given is not None else []
        if folder is None:
            result, weights = train_run(run, outward), None
        else:
            origin = found.given_to(run) if found is not None else None
            log = folder.metrics(origin.log_bytes if origin is not None else 0)
            outward = Several([*shown, log])
            folder.check_space(sum(each.nbytes for each in run.model.parameters()), saving)
            folder.describe(run.built.plan, run.setup.machine)
            keeping = None
            if run.ranks.many:  # the others would not stand still with this one
                run.notices.append("a run of several processes saves no checkpoints yet, and cannot be resumed")
            else:
                stop = open_files.enter_context(signals_as_requests(saving.grace_seconds, _say))
                saver = Saver(
                    folder.store,
                    saving,
                    outward.log,
                    before_write=log.force,
                    shares_processor=run.device.type == "cpu",
                    damaged=found.damaged if found is not None else (),
                )
                open_files.callback(saver.close)
                keeping = Keeping(
                    saver,
                    origin=origin,
                    stop=stop,
                    configuration=configuration_of(run),
                    log_bytes=log.bytes,
                    tell=outward.log,
                )
            result = train_run(run, outward, keeping)
            weights = folder.save_weights(result.weights)
        outward.log(_finished(result, weights))
    return replace(result, job=job)


def prepare(job: Job, plan: Plan | str | Path | None = None, *, name: str = "", watcher: Watcher | None = None) -> Run:
    """A run built from a job and a plan, for a loop of one's own; see hasten.Run.

    watcher: is told while samples are read to be kept; None leaves it to the run's notices.
    """
    if isinstance(plan, str | Path):
        plan = read_plan(Path(plan))
    return Run(job, plan, name=name, watcher=watcher)


def _watcher(shown: Sequence[Receiver], given: Sequence[Receiver] | None) -> Watcher | None:
    """Shows at once what is done before the run begins; None where nobody looks."""
    if not shown:
        looked_at = given is None or len(given) > 0
        return _watcher_of_caches(present_ranks().rank) if looked_at else None
    outward = Several(shown)
    return Watcher(
        lambda text: outward.log(Noticed(text=text)),
        lambda done, samples: outward.log(Preparing(done=done, samples=samples)),
    )


def _watcher_of_caches(rank: int) -> Watcher:
    """For a rank that shows nothing else: a cache is built by whichever rank comes first, for all of them."""
    from hasten.report.streams import write_line
    from hasten.report.text import printable

    told = 0

    def say(text: str) -> None:
        write_line(sys.stderr, printable(f"rank {rank}: {text}"))

    def progress(done: int, samples: int) -> None:
        nonlocal told
        quarters = done * 4 // samples
        if quarters != told:  # each line stays
            told = quarters % 4  # another cache may follow
            say(f"prepared {done:,} of {samples:,} samples")

    return Watcher(lambda text: None, lambda done, samples: None, of_cache=Watcher(say, progress))


def _receivers(given: Sequence[Receiver] | None) -> list[Receiver]:
    if not present_ranks().leads:
        return []
    if given is None:
        from hasten.report.terminal import Progress

        given = [Progress()]
    return [*given]


def _say(text: str) -> None:
    from hasten.report.streams import write_line

    write_line(sys.stderr, text)


def _finished(result: Result, weights: Path | None) -> Finished:
    return Finished(
        reason=result.reason,
        steps=result.steps,
        epochs=result.epochs,
        seconds=result.seconds,
        results=result.results,
        kept_step=result.kept_step,
        skipped_updates=result.skipped_updates,
        weights=None if weights is None else str(weights),
    )
