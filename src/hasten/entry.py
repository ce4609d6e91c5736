"""Training from Python: the engine with what a person expects around it.

`train` runs a whole job, `prepare` hands out a run whose loop is the caller's own. Like the command line, this module
may import every room; none may import it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from hasten.data.keeping import Watcher
from hasten.facts.events import Finished, Noticed, Preparing, Receiver
from hasten.facts.job import Job
from hasten.facts.plan import Plan
from hasten.facts.plan_file import read_plan
from hasten.parallel.replicate import present_ranks
from hasten.training.logs import Several
from hasten.training.loop import Result, train_run
from hasten.training.run import Run
from hasten.training.run_folder import RunFolder


def train(
    job: Job,
    plan: Plan | str | Path | None = None,
    *,
    run_dir: str | Path | None = None,
    receivers: Sequence[Receiver] | None = None,
    name: str = "",
) -> Result:
    """Train a job by a plan, to its planned end or an early stop.

    plan: a Plan, the path of a plan.toml, or None for the job as it is.
    run_dir: folder for plan, environment, metrics and weights; it is made, and must be empty. None writes no file.
    receivers: of the run's events (hasten.facts.events); None shows progress on the terminal.
    name: of the job, as it is shown and written down.

    Raises HastenError, whose classes and exit codes hasten.errors lists; what the job's own code raises comes as it is.
    """
    folder = RunFolder.create(Path(run_dir)) if run_dir is not None and present_ranks().leads else None
    shown = _receivers(receivers)
    try:
        prepared = prepare(job, plan, name=name, watcher=_watcher(shown, receivers))
    except BaseException:
        Several(shown).close()  # one may show a bar
        raise
    with prepared as run:
        outward = Several([*shown, *([folder.metrics()] if folder is not None else [])])
        if folder is not None:
            folder.describe(run.built.plan, run.setup.machine)
        try:
            result = train_run(run, outward)
            weights = folder.save_weights(result.weights) if folder is not None else None
            outward.log(_finished(result, weights))
        finally:
            outward.close()
    return result


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
