"""`hasten tune`."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import JobName, app, command, ending_in_one_block, exit_code_of

if TYPE_CHECKING:
    from hasten.checkpoint.files import GrowingFile
    from hasten.facts.plan import Plan
    from hasten.facts.trials import Record, Surveyed
    from hasten.tune.search.plan_search import Found
    from hasten.tune.trials.other_programs import OtherPrograms

ALLOW = (
    "What a choice may change at most: bits, rounding, statistics, training. "
    "What changes training is judged by whole runs, which come on top of --seconds."
)
BUSY = (
    "Measure although other programs use the processor: the result then holds for a machine that is as busy. "
    "Without it, disturbed measurements are repeated, for up to --seconds more."
)
ALLOWED = ("bits", "rounding", "statistics", "training")
MUCH_ELSE = 0.05  # of the processor, that others took
SECONDS = 60.0  # where nothing else is said
INTERRUPTED_EARLY = "interrupted before a plan was proven; the same command goes on where it was"


@app.command()
@ending_in_one_block
def tune(
    job: JobName,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The plan to write.")] = Path(
        "plan.toml"
    ),
    allow: Annotated[
        str,
        typer.Option(metavar="CLASS", help=ALLOW),
    ] = "statistics",
    seconds: Annotated[
        float, typer.Option(metavar="S", min=1, help="About how long to look. Trials of compiling come on top.")
    ] = SECONDS,
    busy: Annotated[bool, typer.Option("--busy", help=BUSY)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """Try every technique, and write what is proven as a plan. Interrupted, it goes on where it was.

    \b
    Examples:
      hasten tune digits.py:job
      hasten tune digits.py:job --seconds 300 --output night.toml
      hasten tune digits.py:job --allow rounding
    """
    began = time.monotonic()
    from hasten.errors import Misconfigured
    from hasten.tune.trials.libraries import libraries_of
    from hasten.tune.trials.trial_process import start_fork_server

    if allow not in ALLOWED:
        raise Misconfigured(f"--allow is {allow!r}", fix=f"write one of {', '.join(ALLOWED)}")
    start_fork_server(libraries_of(job))  # which loads torch, as this process does meanwhile
    from hasten.checkpoint.plan_output import held_place, write_found_plan
    from hasten.report.terminal.output import show
    from hasten.report.terminal.search_progress import Tuning
    from hasten.training.setup.load_job import split_name
    from hasten.tune.trials.other_programs import OtherPrograms

    split_name(job)
    with held_place(output):
        trials = Trials(output)
        screen = Tuning(seconds)
        try:
            others = OtherPrograms(None if busy else seconds, screen.doing)
            found = _searched(job, seconds, allow, others, trials, screen, began)
        finally:
            screen.close()
            trials.close()
        plan, written = _plan(found), found.has_plan or not found.interrupted
        if written:
            write_found_plan(plan, output)
    told = _sentence(found, others.share) if written else INTERRUPTED_EARLY
    if as_json:
        typer.echo(json.dumps(_answer(found, plan, output if written else None, told)))
    else:
        where = [("machine", found.look.surveyed.machine), ("plan", str(output))] if written else []
        asked = _Asked(job=job, output=output, allow=allow, seconds=seconds, busy=busy)
        show("", [("", told), *where, *_not_reached(found, asked), ("next", _next(found, asked))])
    if found.interrupt is not None:
        raise typer.Exit(exit_code_of(found.interrupt))


class Trials:
    """The file of trials beside a plan whose place is held: made, or gone on with, once the job is known."""

    def __init__(self, plan: Path) -> None:
        """Raises StorageFailed where a search could not write what it finds, Misconfigured where what is there is not
        its own: before it begins."""
        from hasten.checkpoint.files import open_for_append
        from hasten.errors import Misconfigured
        from hasten.facts.trials import Surveyed, read_trials, trials_beside

        self._path = trials_beside(plan)
        self._file: GrowingFile | None = None
        self._records: list[Record] = []
        if not os.path.lexists(self._path):
            return
        self._records = read_trials(self._path)
        if self._path.stat().st_size and not any(isinstance(record, Surveyed) for record in self._records):
            what, fix = (
                "is there already, and is no file of trials",
                "choose another name with --output, or move it away",
            )
            raise Misconfigured(what, where=str(self._path), fix=fix)
        open_for_append(self._path).close()

    def earlier(self, surveyed: Surveyed) -> Sequence[Record]:
        """What a search of the same key has found out; a file of another one is begun anew."""
        from hasten.checkpoint.files import open_for_append, write_atomically
        from hasten.facts.trials import Surveyed

        keys = [record.key for record in self._records if isinstance(record, Surveyed)]
        same = bool(keys) and keys[-1] == surveyed.key
        if not same:
            write_atomically(self._path, b"")
        self._file = open_for_append(self._path)
        return self._records if same else []

    def keep(self, record: Record) -> None:
        from hasten.facts.trials import line_of

        assert self._file is not None
        self._file.add_line(line_of(record).encode())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _searched(
    job: str, seconds: float, allow: str, others: OtherPrograms, trials: Trials, screen: Any, began: float
) -> Found:
    from hasten.checkpoint.folders.process_folder import process_folder
    from hasten.facts.choice import Preserves
    from hasten.tune.search.plan_search import Search
    from hasten.tune.search.search_log import Options
    from hasten.tune.trials.arms import Arms
    from hasten.tune.trials.trial_outcome import ArmFailed

    options = Options(seconds=seconds, ceiling=Preserves[allow.upper()])

    def keep(record: Record) -> None:
        trials.keep(record)
        screen.record(record)

    search = Search(
        Arms(job, place=process_folder(), other_programs=others),
        job,
        options,
        keep=keep,
        tell=screen.doing,
        earlier=trials.earlier,
        began=began,
    )
    try:
        return search()
    except ArmFailed as failure:
        raise failure.as_error() from failure


def _plan(found: Found) -> Plan:
    from hasten.tune.search.found_plan import plan_found

    return plan_found(found.look.surveyed, found.proven, found.ledger.tried, found.ledger.proofs, found.gained)


def _sentence(found: Found, others: float) -> str:
    """others: share of the processor that other programs took."""
    from hasten.report.terminal.search_progress import sentence

    gained = found.gained.reached if found.gained else ()
    plain, stops_early = found.look.costs, found.look.surveyed.stops_early
    seconds, between = (found.look.run_seconds, None) if plain is None else (plain.total, plain.between)
    told = sentence(found.proven, seconds, gained, between=between, stops_early=stops_early)
    took = f"; meanwhile other programs took {100 * others:.0f} % of the processor"
    return f"{told}{took if others > MUCH_ELSE else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """The command as it was given."""

    job: str
    output: Path
    allow: str
    seconds: float
    busy: bool

    def again(self, seconds: float) -> str:
        """The command that continues the search, for so long."""
        longer = [] if seconds == SECONDS else ["--seconds", str(seconds).removesuffix(".0")]
        busy = ["--busy"] if self.busy else []
        return shlex.join(
            ["hasten", "tune", self.job, "--output", str(self.output), "--allow", self.allow, *longer, *busy]
        )


def _next(found: Found, asked: _Asked) -> str:
    """To train, by the plan if there is one; after an interruption without a plan, to continue."""
    if found.has_plan or not found.interrupted:
        return command("train", asked.job, asked.output if found.has_plan else None)
    return asked.again(asked.seconds)


def _not_reached(found: Found, asked: _Asked) -> list[tuple[str, str]]:
    """Lines that name the techniques there was no time for, and the command that tries them."""
    names = [] if found.interrupted else found.ledger.not_reached
    if not names:
        return []
    return [("not tried", f"for want of time: {', '.join(names)}"), ("go on", asked.again(4 * asked.seconds))]


def _answer(found: Found, plan: Plan, written: Path | None, told: str) -> dict[str, Any]:
    """written: where the plan is; None where none was written."""
    from dataclasses import asdict

    return {
        "sentence": told,
        "interrupted": found.interrupted,
        "job": found.look.surveyed.job,
        "machine": found.look.surveyed.machine,
        "plan": None if written is None else str(written),
        "total": None if plan.total is None else asdict(plan.total),
        "speedup": None if found.proven is None else asdict(found.proven.speedup),
        "target": [] if found.gained is None else [asdict(each) for each in found.gained.reached],
        "choices": [asdict(each.choice) for each in plan.choices],
        "rejected": [asdict(each) for each in plan.rejected],
        "not_reached": found.ledger.not_reached,
    }
