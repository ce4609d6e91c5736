"""`hasten doctor`: what slows a job."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.application import AsJson, PlanPath, Quiet, SetOption, app, command, ends_with_exit_code, job_options
from hasten.cli.doctor.doctor_job import file_of, findings_of, is_job, profile_job, show_profile
from hasten.cli.doctor.doctor_script import run_script
from hasten.cli.tuning.launcher import leads_script
from hasten.cli.tuning.script_words import MODULE, is_script
from hasten.errors import Misconfigured, Unreadable
from hasten.facts.finding import Safety, ranked, without_repeats
from hasten.facts.formatting import printable
from hasten.facts.machine import has_accelerator
from hasten.report.display import listed, many
from hasten.report.finding_formats import as_diff, as_github, as_sarif, as_text, summary
from hasten.report.finding_formats import as_json as as_json_list
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import WIDE_LABEL, Lines, Output, failure_block, show

if TYPE_CHECKING:
    from hasten.doctor.lint.fixes import Mended
    from hasten.doctor.lint.project_settings import Settings
    from hasten.doctor.registry import AnyRule
    from hasten.doctor.rule import SourceRule
    from hasten.facts.finding import Finding
    from hasten.training.setup.job_options import JobOptions

FOUND = 1


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


Targets = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="Python files, notebooks or folders of them; or a job: digits.py:job."),
]
UnsafeFixes = Annotated[
    bool, typer.Option("--unsafe-fixes", help="With --fix or --diff: include fixes that may change results.")
]
RUN = (
    "Run some steps of one training script, in a copy of its folder: show where the seconds go, and what each finding "
    "costs. The script's own options follow its name."
)
PROCESSES = "With --run: run the script as N processes, as torchrun --nproc-per-node N does."


@app.command()
@ends_with_exit_code
def doctor(
    context: typer.Context,
    targets: Targets,
    plan: PlanPath = None,
    settings: SetOption = None,
    select: Annotated[str, typer.Option(metavar="CODES", help="Only these rules: H201,H3.")] = "",
    ignore: Annotated[str, typer.Option(metavar="CODES", help="All rules except these.")] = "",
    form: Annotated[Format, typer.Option("--format", help="Format of the findings.")] = Format.TEXT,
    fix: Annotated[bool, typer.Option("--fix", help="Fix what can be fixed safely.")] = False,
    unsafe_fixes: UnsafeFixes = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show the fixes as a diff, and write nothing.")] = False,
    run: Annotated[bool, typer.Option("--run", help=RUN)] = False,
    processes: Annotated[int | None, typer.Option("--nproc", metavar="N", min=1, help=PROCESSES)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show findings for GPUs on any machine.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Find what slows training, in source files or a job. It runs no file without --run, and some steps of a job.

    The exit code is 0 if nothing was found or everything was fixed, 1 if something was found, and 2 if a file cannot be
    read. A project may choose rules in its pyproject.toml, under [tool.hasten].

    \b
    Examples:
      hasten doctor train.py
      hasten doctor --run train.py --epochs 3
      hasten doctor --run --nproc 2 train.py
      hasten doctor digits.py:job
      hasten doctor src --select H2 --json
      hasten doctor train.py --diff
    """
    options, jobs = job_options(context, settings), [*filter(is_job, targets)]
    paths, files_of_jobs = _paths_of(targets, jobs)
    _check_options(paths, fix=fix, unsafe_fixes=unsafe_fixes, diff=diff, processes=None if run else processes)
    chosen = partial(_project, _codes(select), _codes(ignore))
    if run:
        unused = {"--plan": plan, "--set": settings, "--fix": fix, "--diff": diff, "--format": form is not Format.TEXT}
        output = CommandOutput(quiet=quiet, as_json=as_json, label_columns=WIDE_LABEL)
        _run_script(_script_of(targets, unused), context.obj or (), processes, chosen, everything, output)
        return
    files, unreadable = _files_in(paths, jobs)
    projects = _projects(files, chosen)
    if diff:
        _diff(projects, unreadable, jobs, _fix_command(paths, select, ignore, unsafe_fixes), unsafe_fixes)
        return
    mended = _fix(projects, unsafe_fixes) if fix else []
    with CommandOutput(quiet=quiet, as_json=as_json or form is not Format.TEXT) as output:
        output.header(f"Checking {listed(targets)}")
        findings, linted, failed = _findings(projects, output)
        unreadable += failed
        _warn_of(unreadable) if linted or jobs else _stop_at(unreadable)
        for job, own in (of_jobs := {job: _project_of(job, chosen) for job in jobs}).items():
            findings += _of_job(job, plan, options, own, output)
        once = ranked(without_repeats(findings, files_of_jobs))
        if as_json or form is Format.TEXT:
            following = partial(_next, [command("tune", job, None, options) for job in jobs], files)
            _show(once, everything or as_json, (linted, len(unreadable)), mended, following, output)
        else:
            output.document(_document(once, form, [*projects, *of_jobs.values()]))
    _end(unreadable, bool(findings))


def _findings(projects: Sequence[_Project], output: CommandOutput) -> tuple[list[Finding], int, list[Unreadable]]:
    """In source files; how many were read, and which could not be."""
    from hasten.doctor.lint.linter import Checked, lint

    count, linted = sum(len(project.files) for project in projects), list[Checked]()
    with closing(output.progress("reading files")) as waiting:
        for each in (each for project in projects for each in lint(project.files, project.of_sources)):
            linted.append(each)
            waiting(len(linted), count)
    _warn(note for each in linted for note in each.notes)
    failed = [each.unreadable for each in linted if each.unreadable is not None]
    return [finding for each in linted for finding in each.findings], len(linted) - len(failed), failed


def _paths_of(targets: Sequence[str], jobs: Sequence[str]) -> tuple[list[Path], list[str]]:
    """All, and those of the jobs' files."""
    files_of_jobs = [path for each in jobs for path in file_of(each)]
    return [*(Path(each) for each in targets if each not in jobs), *files_of_jobs], [*map(str, files_of_jobs)]


def _files_in(paths: Sequence[Path], jobs: Sequence[str]) -> tuple[list[Path], list[Unreadable]]:
    """And those that cannot be read. Raises Unreadable where nothing else is there, and no job."""
    from hasten.doctor.lint.source_files import files_in

    files, unreadable = files_in(paths)
    if not files and not jobs:
        _stop_at(unreadable)
    return files, unreadable


def _run_script(
    script: str,
    words: Sequence[str],
    processes: int | None,
    chosen: Callable[..., _Project],
    everything: bool,
    output: CommandOutput,
) -> None:
    """words: its own. Ends with the exit code of what is found in its files."""
    if not leads_script(processes):
        return
    with output:
        run = run_script(script, words, output)
        findings, _, unreadable = _findings(_projects(run.files, chosen), output)
        _warn_of(unreadable)
        priced = run.priced(findings)
        shown = priced if everything else (_here(priced) or priced)
        run.show(priced, shown, _hidden(len(priced) - len(shown)), output)
    _end(unreadable, bool(priced))


def _project_of(job: str, chosen: Callable[..., _Project]) -> _Project:
    from hasten.doctor.lint.project_settings import settings_for

    return chosen(settings_for(next(iter(file_of(job)), Path())), [])


def _of_job(job: str, plan: Path | None, options: JobOptions, own: _Project, output: CommandOutput) -> list[Finding]:
    model, run = profile_job(job, plan, output, options)
    show_profile(model, run, output)
    return findings_of(model, run, own.rules)


def _check_options(paths: Sequence[Path], *, fix: bool, unsafe_fixes: bool, diff: bool, processes: int | None) -> None:
    """processes: of a script that does not run."""
    if processes is not None:
        raise Misconfigured("--nproc is for a script that runs", fix="add --run, and name the script behind it")
    if unsafe_fixes and not (fix or diff):
        what = "--unsafe-fixes has no effect without --fix or --diff"
        raise Misconfigured(what, fix="add --diff to show the fixes, or --fix to apply them")
    if (fix or diff) and not paths:
        option = "--diff" if diff else "--fix"
        what = f"{option} needs a file, but the job is given as a module"
        raise Misconfigured(what, fix=f"name its file: hasten doctor train.py {option}")


def _script_of(targets: Sequence[str], unused: Mapping[str, object]) -> str:
    """unused: options that have no effect on a script that runs, with what was given for each."""
    if others := [option for option, given in unused.items() if given]:
        raise Misconfigured(f"--run has no use for {others[0]}", fix=f"use either --run or {others[0]}")
    if len(targets) != 1 or not (is_script(targets[0]) or targets[0].startswith(MODULE)):
        what = f"--run is for one training script, not for {listed(targets)}"
        raise Misconfigured(what, fix="name a script and its options: hasten doctor --run train.py --epochs 3")
    return targets[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Project:
    """files: whose nearest pyproject.toml chooses these rules."""

    files: Sequence[Path]
    rules: Sequence[AnyRule]

    @property
    def of_sources(self) -> list[SourceRule]:
        from hasten.doctor.registry import of_sources

        return of_sources(self.rules)


def _project(select: Sequence[str], ignore: Sequence[str], settings: Settings, files: Sequence[Path]) -> _Project:
    """select, ignore: on the command line, which overrides the settings. Raises Misconfigured for a code that no rule
    has."""
    from hasten.doctor.registry import selected

    ignored = (*ignore, *(() if select else settings.ignore))
    return _Project(files=files, rules=selected(select or settings.select, ignored))


def _projects(files: Sequence[Path], chosen: Callable[..., _Project]) -> list[_Project]:
    from hasten.doctor.lint.project_settings import by_project

    projects = [chosen(settings, of) for settings, of in by_project(files).items()]
    excluded = len(files) - sum(len(project.files) for project in projects)
    if excluded:
        _warn([f"skipped {many(excluded, 'file')} that [tool.hasten] in pyproject.toml excludes"])
    return projects


def _codes(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _mend(projects: Sequence[_Project], unsafe: bool) -> tuple[list[Mended], list[Unreadable]]:
    """The files with their fixes, not yet written. It warns of files that could be fixed and are not."""
    from hasten.doctor.lint.fixes import mend, why_left_alone

    allowed = {Safety.SAFE, Safety.UNSAFE} if unsafe else {Safety.SAFE}
    mended: list[Mended] = []
    unreadable: list[Unreadable] = []
    for project, path in ((each, path) for each in projects for path in each.files):
        rules = [rule for rule in project.of_sources if rule.safety in allowed]
        try:
            if (found := mend(path, rules)) is not None:
                mended.append(found)
            elif why := why_left_alone(path, rules):
                _warn([f"{path} is unchanged: {why}"])
        except Unreadable as error:
            unreadable.append(error)
    return mended, unreadable


def _fix(projects: Sequence[_Project], unsafe: bool) -> list[Mended]:
    """The files that it has changed. What cannot be read is reported by the check that follows."""
    from hasten.doctor.lint.fixes import write

    mended, _ = _mend(projects, unsafe)
    for each in mended:
        write(each)
    return mended


def _diff(
    projects: Sequence[_Project], unreadable: Sequence[Unreadable], jobs: Sequence[str], following: str, unsafe: bool
) -> None:
    mended, failed = _mend(projects, unsafe)
    if failed and len(failed) == sum(len(each.files) for each in projects):
        _stop_at([*unreadable, *failed])
    _warn_of(unreadable := [*unreadable, *failed])
    _show_diff(mended, jobs, len(unreadable), following)
    _end(unreadable, bool(mended))


def _show_diff(mended: Sequence[Mended], jobs: Sequence[str], unreadable: int, following: str) -> None:
    """The diff alone is on standard output."""
    for each in mended:
        before, after = each.before.encode(each.encoding), each.after.encode(each.encoding)
        typer.echo(as_diff(str(each.path), before, after), nl=False)
    count, left_out = sum(each.count for each in mended), f"; {unreadable:,} could not be read" if unreadable else ""
    found = f"{count:,} can be fixed in {many(len(mended), 'file')}{left_out}"
    notes = [("note", f"{job} was not run: --diff is for files") for job in jobs]
    Output(sys.stderr).result(Sentence(headline=found), notes, following if mended else "")


def _fix_command(paths: Sequence[Path], select: str, ignore: str, unsafe: bool) -> str:
    """That writes what the diff shows."""
    chosen = [*(["--select", select] if select else []), *(["--ignore", ignore] if ignore else [])]
    return shlex.join(["hasten", "doctor", *map(str, paths), *chosen, "--fix", *(["--unsafe-fixes"] if unsafe else [])])


def _warn(notes: Iterable[str]) -> None:
    for each in notes:
        typer.echo(printable(each), err=True)


def _here(findings: Sequence[Finding]) -> Sequence[Finding]:
    """What costs something on this machine."""
    if not any(each.gpu_only for each in findings) or has_accelerator():
        return findings
    return [each for each in findings if not each.gpu_only]


def _show(
    findings: Sequence[Finding],
    everything: bool,
    read: tuple[int, int],
    mended: Sequence[Mended],
    following: Callable[[Sequence[Finding]], str],
    output: CommandOutput,
) -> None:
    """read: how many files were, and how many could not be."""
    shown = findings if everything else (_here(findings) or findings)
    if shown:
        output.text(f"\n{as_text(shown)}")
    facts = [("" if number else "fixed", f"{each.count:,} in {each.path}") for number, each in enumerate(mended)]
    facts += _hidden(len(findings) - len(shown))
    output.result(summary(shown, *read), facts, following(shown), {"findings": findings})


def _hidden(count: int) -> Lines:
    cost = f"cost{'s' if count == 1 else ''} time on a GPU only"
    return [("note", f"{many(count, 'more finding')} {cost}, and this machine has none: add --all")] if count else []


def _document(findings: Sequence[Finding], form: Format, projects: Sequence[_Project]) -> str:
    """For a program that reads this format."""
    if form is Format.JSON:
        return as_json_list(findings)
    if form is Format.GITHUB:
        return as_github(findings)
    from importlib.metadata import version

    rules = dict.fromkeys((rule.code, rule.name, rule.headline) for each in projects for rule in each.rules)
    return as_sarif(findings, list(rules), version("hasten"))


def _next(searches: Sequence[str], files: Sequence[Path], findings: Sequence[Finding]) -> str:
    """About the first finding, which costs most; of a script without any, to tune its job or the script itself."""
    if searches:
        return searches[0]
    if findings:
        first = findings[0]
        fixable = first.safety is Safety.SAFE
        return shlex.join(["hasten", "doctor", first.path, "--diff"] if fixable else ["hasten", "explain", first.code])
    tuned = _tuned(files[0]) if len(files) == 1 else ""
    return shlex.join(["hasten", "tune", tuned]) if tuned else "hasten techniques"


def _tuned(file: Path) -> str:
    """What `hasten tune` takes of this file; empty if it neither defines a job nor trains."""
    from hasten.doctor.job_sketch import job_sketch
    from hasten.regular_files import read_regular
    from hasten.training.setup.no_job import functions_in

    if job := next((name for name, makes_a_job in functions_in(str(file)).items() if makes_a_job), ""):
        return f"{file}:{job}"
    return str(file) if job_sketch(read_regular(file).decode(errors="replace")) is not None else ""


def _warn_of(unreadable: Iterable[Unreadable]) -> None:
    for error in unreadable:
        show("", failure_block(error), sys.stderr)


def _stop_at(unreadable: Sequence[Unreadable]) -> None:
    """Where nothing was read. Raises the last of what could not be; an empty folder is no failure."""
    _warn_of(unreadable[:-1])
    for last in unreadable[-1:]:
        raise last


def _end(unreadable: Sequence[Unreadable], found: bool) -> None:
    if unreadable:
        raise typer.Exit(Unreadable.exit_code)
    if found:
        raise typer.Exit(FOUND)
