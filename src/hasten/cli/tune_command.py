"""`hasten tune`."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import (
    AsJson,
    JobName,
    Quiet,
    SetOption,
    app,
    command,
    ends_with_exit_code,
    exit_code_of,
    job_options,
)
from hasten.errors import Misconfigured
from hasten.facts.choice import Preserves
from hasten.facts.trials import Surveyed, line_of, read_trials, trials_beside
from hasten.report.display import listed, named
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import Lines
from hasten.report.terminal.search_progress import SearchProgress

if TYPE_CHECKING:
    from hasten.checkpoint.files import GrowingFile
    from hasten.facts.plan import Plan, Rejected
    from hasten.facts.trials import Record, Surveyed
    from hasten.training.setup.job_options import JobOptions
    from hasten.tuning.search.plan_search import Found
    from hasten.tuning.trials.other_programs import OtherPrograms

ALLOW = (
    "The most that a choice may change: bits, rounding, statistics, training. "
    "Choices that change training are judged by whole runs, which take time beyond --seconds."
)
BUSY = (
    "Measure while other programs use the CPU; the result is then valid for a machine that is as busy. "
    "Without it, disturbed measurements are repeated, for up to --seconds more."
)
ALLOWED = ("bits", "rounding", "statistics", "training")
MUCH_ELSE = 0.05  # share of the CPU used by other programs
SECONDS = 60.0
MORE = "a longer search for what is not tried or not proven, which repeats no trial:"
INTERRUPTED_EARLY = "Interrupted before a plan was proven: run the same command to continue"


@app.command()
@ends_with_exit_code
def tune(
    context: typer.Context,
    job: JobName,
    file: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The plan file to write.")] = Path(
        "plan.toml"
    ),
    allow: Annotated[
        str,
        typer.Option(metavar="CLASS", help=ALLOW),
    ] = "statistics",
    seconds: Annotated[
        float,
        typer.Option(metavar="S", min=1, help="Approximate duration; trials of compile take additional time."),
    ] = SECONDS,
    settings: SetOption = None,
    busy: Annotated[bool, typer.Option("--busy", help=BUSY)] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Try every technique, and write what is proven as a plan. Run it again to continue after an interruption.

    \b
    Examples:
      hasten tune digits.py:job
      hasten tune digits.py:job --seconds 300 --output night.toml
      hasten tune digits.py:job --allow rounding
      hasten tune digits.py:job --json
    """
    began, options = time.monotonic(), job_options(context, settings)
    from hasten.training.setup.load_job import split_name

    if allow not in ALLOWED:
        raise Misconfigured(f"--allow is {allow!r}", fix=f"write one of {', '.join(ALLOWED)}")
    split_name(job)  # a script without a job is answered before torch is loaded
    from hasten.tuning.trials.process_seconds import libraries_of
    from hasten.tuning.trials.trial_process import start_fork_server

    start_fork_server(libraries_of(job))  # which loads torch, as this process does meanwhile
    with CommandOutput(quiet=quiet, as_json=as_json) as output:
        output.header(f"Tuning {job}")
        found = _tune(job, options, file, seconds, allow, busy, output, began)
    if found.interrupt is not None:
        raise typer.Exit(exit_code_of(found.interrupt))


def _tune(
    job: str,
    options: JobOptions,
    file: Path,
    seconds: float,
    allow: str,
    busy: bool,
    output: CommandOutput,
    began: float,
) -> Found:
    from hasten.checkpoint.plan_output import held_place, write_found_plan
    from hasten.tuning.search.found_plan import faster_and_rejected
    from hasten.tuning.trials.other_programs import OtherPrograms

    screen = SearchProgress(seconds, is_shown=not output.quiet)
    with held_place(file), closing(Trials(file)) as trials, closing(screen):
        others = OtherPrograms(None if busy else seconds, screen.doing)
        found = _searched(job, options, seconds, allow, others, trials, screen, began)
        plan, written = _plan(found), found.has_plan or not found.interrupted
        if written:
            write_found_plan(plan, file)
    sentence = _sentence(found, others.share) if written else Sentence(headline=INTERRUPTED_EARLY)
    unproven = faster_and_rejected(plan, found.log.tried) if written else []
    again = partial(_again, job, file, options, allow=allow, busy=busy)
    trains = found.has_plan or not found.interrupted
    following = command("train", job, file if found.has_plan else None, options) if trains else again(seconds)
    facts = _facts(found, unproven, file if written else None, again(4 * seconds))
    output.result(sentence, facts, following, _answer(found, plan, file if written else None))
    return found


def _facts(found: Found, unproven: Sequence[Rejected], written: Path | None, again: str) -> Lines:
    """unproven: what was shown as faster and is not in the plan. written: the plan; None where none was. again: the
    command that continues the search."""
    machine = found.profile.surveyed.machine
    lines = [("machine", machine), ("plan", str(written))] if written is not None else []
    if choices := [named(each) for each in found.choices]:
        lines.append(("choices", listed(choices, most=len(choices))))
    names = [] if found.interrupted else found.log.not_reached
    if names:
        lines.append(("not tried", f"no time left: {', '.join(names)}"))
    for each in unproven:
        lines.append(("not proven", f"{each.technique} = {each.value}: {each.reason}"))
    if names or unproven:
        lines += [("optional", MORE), ("continue", again)]
    return lines


class Trials:
    """The file of trials beside a plan. It is created, or continued, once the job's key is known."""

    def __init__(self, plan: Path) -> None:
        """Raises StorageFailed if it cannot be written, Misconfigured if it is another file; before the search."""
        from hasten.checkpoint.files import GrowingFile

        self._path = trials_beside(plan)
        self._file: GrowingFile | None = None
        self._records: list[Record] = []
        if not os.path.lexists(self._path):
            return
        self._records = read_trials(self._path)
        if self._path.stat().st_size and not any(isinstance(record, Surveyed) for record in self._records):
            fix = "choose another name with --output, or move the file"
            raise Misconfigured("exists, but is not a trials file", where=str(self._path), fix=fix)
        GrowingFile(self._path).close()

    def earlier(self, surveyed: Surveyed) -> Sequence[Record]:
        """The records of an earlier search with the same key; a file of another search is emptied."""
        from hasten.checkpoint.files import GrowingFile, write_atomically

        keys = [record.key for record in self._records if isinstance(record, Surveyed)]
        same = bool(keys) and keys[-1] == surveyed.key
        if not same:
            write_atomically(self._path, b"")
        self._file = GrowingFile(self._path)
        return self._records if same else []

    def keep(self, record: Record) -> None:
        assert self._file is not None
        self._file.add_line(line_of(record).encode())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _searched(
    job: str,
    given: JobOptions,
    seconds: float,
    allow: str,
    others: OtherPrograms,
    trials: Trials,
    screen: Any,
    began: float,
) -> Found:
    from hasten.checkpoint.folders.process_folder import process_folder
    from hasten.tuning.search.plan_search import Search
    from hasten.tuning.search.search_log import Options
    from hasten.tuning.trials.arms import Arms
    from hasten.tuning.trials.trial_outcome import ArmFailed

    options = Options(seconds=seconds, ceiling=Preserves[allow.upper()])

    def keep(record: Record) -> None:
        trials.keep(record)
        screen.record(record)

    search = Search(
        Arms(job, place=process_folder(), other_programs=others, options=given),
        job,
        options,
        keep=keep,
        report=screen.doing,
        earlier=trials.earlier,
        began=began,
    )
    try:
        return search()
    except ArmFailed as failure:
        raise failure.as_error() from failure


def _plan(found: Found) -> Plan:
    from hasten.tuning.search.found_plan import plan_found

    return plan_found(found.profile.surveyed, found.proven, found.log.tried, found.log.proofs, found.gained)


def _sentence(found: Found, others: float) -> Sentence:
    """others: share of the CPU that other programs used."""
    from hasten.report.display import percent
    from hasten.report.plan_sentence import search_sentence
    from hasten.tuning.search.objective import least_visible

    gained = [found.gained.reached] if found.gained else []
    profile = found.profile
    plain, stops_early = profile.costs, profile.surveyed.stops_early
    if plain is None:
        seconds, between = profile.length.process_seconds + profile.start_seconds + profile.run_seconds, None
    else:
        seconds, between = plain.total, plain.between
    result = search_sentence(found.proven, seconds, gained, between=between, stops_early=stops_early)
    if others <= MUCH_ELSE:
        return result
    seen = None if found.has_plan else least_visible(found.log.tried)
    blind = "" if seen is None or seen < 1.005 else f": gains below about {seen:.2f}× could not be seen"
    return replace(result, small_print=f"{result.small_print}\nother programs used {percent(others)} of the CPU{blind}")


def _again(job: str, output: Path, given: JobOptions, seconds: float, *, allow: str, busy: bool) -> str:
    """The command that continues the search, for so many seconds."""
    longer = [] if seconds == SECONDS else ["--seconds", str(seconds).removesuffix(".0")]
    options = ["--output", str(output), "--allow", allow, *longer, *(["--busy"] if busy else [])]
    return shlex.join(["hasten", "tune", job, *options, *given.words])


def _answer(found: Found, plan: Plan, written: Path | None) -> dict[str, Any]:
    """written: where the plan is; None where none was written."""
    return {
        "interrupted": found.interrupted,
        "job": found.profile.surveyed.job,
        "machine": found.profile.surveyed.machine,
        "plan": written,
        "total": None if plan.total is None else asdict(plan.total),
        "speedup": None if found.proven is None else asdict(found.proven.speedup),
        "target": [] if found.gained is None else [asdict(found.gained.reached)],
        "choices": [asdict(each.choice) for each in plan.choices],
        "rejected": [
            *[asdict(each) for each in plan.rejected],
            *[{"technique": name, "reason": why, "value": None} for name, why in plan.not_tried.items()],
        ],
        "not_reached": found.log.not_reached,
    }
