"""`hasten doctor`: what slows a job."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from hasten.cli.application import PlanPath, app, command, ending_in_one_block, offer
from hasten.cli.doctor_job import found_in_job, is_job, look_at_job, show_look, source_of
from hasten.errors import Misconfigured, Unreadable

if TYPE_CHECKING:
    from hasten.doctor.lint.fixes import Mended
    from hasten.doctor.lint.project_settings import Settings
    from hasten.doctor.registry import AnyRule
    from hasten.doctor.rule import SourceRule
    from hasten.facts.finding import Finding

FOUND = 1
_QUIET_SECONDS = 2.0
_Item = TypeVar("_Item")


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


@app.command()
@ending_in_one_block
def doctor(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Source files, notebooks, folders of them; or a job: digits.py:job."),
    ],
    plan: PlanPath = None,
    select: Annotated[str, typer.Option(metavar="CODES", help="Only these rules: H201,H3.")] = "",
    ignore: Annotated[str, typer.Option(metavar="CODES", help="All rules but these.")] = "",
    output: Annotated[Format, typer.Option("--format", help="How findings are written.")] = Format.TEXT,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what can be mended safely.")] = False,
    unsafe_fixes: Annotated[
        bool,
        typer.Option("--unsafe-fixes", help="With --fix or --diff: also what may change the outcome."),
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what would be mended, and write nothing.")] = False,
) -> None:
    """Find what slows training, in source files or in a job. Nothing of a file is executed; of a job, some steps are.

    The exit code is 0 where nothing was found or all of it was mended, 1 where something was found, and 2 where a file
    cannot be read. A project's own choice stands in its pyproject.toml, under [tool.hasten].

    \b
    Examples:
      hasten doctor train.py
      hasten doctor digits.py:job
      hasten doctor src --select H2 --format json
      hasten doctor train.py --diff
    """
    from hasten.doctor.lint.linter import lint
    from hasten.doctor.lint.project_settings import settings_for
    from hasten.doctor.lint.source_files import files_in
    from hasten.facts.finding import ranked, told_once

    jobs = [each for each in targets if is_job(each)]
    if unsafe_fixes and not (fix or diff):
        raise _mends_nothing()
    paths = [Path(each) for each in targets if each not in jobs] + [path for each in jobs for path in source_of(each)]
    if (fix or diff) and not paths:
        raise _of_no_file("--diff" if diff else "--fix")
    files, unreadable = files_in(paths)
    chosen = _Chosen(select=_codes(select), ignore=_codes(ignore))
    projects = _projects(files, chosen)
    if diff or fix:
        mending = _mending(projects, unsafe_fixes)
        if diff:
            _end_after_diff(mending, unreadable, jobs)
        _write(mending.mended)
    looked = [each for project in projects for each in _told_meanwhile(lint(project.files, project.of_sources))]
    findings = [finding for each in looked for finding in each.findings]
    _tell([note for each in looked for note in each.notes])
    for job in jobs:
        projects.append(own := chosen.by(settings_for(next(iter(source_of(job)), Path())), []))
        look = look_at_job(job, plan)
        if output is Format.TEXT:
            show_look(look)
        findings += found_in_job(look, own.rules)
    unreadable += [each.unreadable for each in looked if each.unreadable is not None]
    found = ranked(told_once(findings, [str(path) for each in jobs for path in source_of(each)]))
    _show(found, len(looked), output, projects, next(iter(jobs), None))
    _end(unreadable, bool(findings))


def _mends_nothing() -> Misconfigured:
    what = "--unsafe-fixes says which changes are meant, and not what to do with them"
    return Misconfigured(what, fix="add --diff to see them, or --fix to make them")


def _of_no_file(option: str) -> Misconfigured:
    what = f"{option} is for files, and a job that is named by its module tells of none"
    return Misconfigured(what, fix=f"name its file: hasten doctor train.py {option}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Project:
    """files: whose nearest pyproject.toml asks for these rules."""

    files: Sequence[Path]
    rules: Sequence[AnyRule]

    @property
    def of_sources(self) -> list[SourceRule]:
        from hasten.doctor.registry import of_sources

        return of_sources(self.rules)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chosen:
    """In the command, which no project's own choice takes back."""

    select: tuple[str, ...]
    ignore: tuple[str, ...]

    def by(self, settings: Settings, files: Sequence[Path]) -> _Project:
        """Raises Misconfigured for a code that no rule has."""
        from hasten.doctor.registry import selected

        ignored = (*self.ignore, *(() if self.select else settings.ignore))
        return _Project(files=files, rules=selected(self.select or settings.select, ignored))


def _projects(files: Sequence[Path], chosen: _Chosen) -> list[_Project]:
    from hasten.doctor.lint.project_settings import by_project

    projects = [chosen.by(settings, of) for settings, of in by_project(files).items()]
    excluded = len(files) - sum(len(project.files) for project in projects)
    if excluded:
        many = "1 file" if excluded == 1 else f"{excluded:,} files"
        _tell([f"not looked at: {many} that [tool.hasten] in pyproject.toml excludes"])
    return projects


def _codes(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.replace(",", " ").split()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mending:
    mended: list[Mended]
    unreadable: list[Unreadable]


def _mending(projects: Sequence[_Project], unsafe: bool) -> _Mending:
    """Nothing is written yet. Files that could be mended and are left alone are told."""
    from hasten.doctor.lint.fixes import mend, why_left_alone
    from hasten.facts.finding import Safety

    allowed = {Safety.SAFE, Safety.UNSAFE} if unsafe else {Safety.SAFE}
    files = [(path, project) for project in projects for path in project.files]
    mended: list[Mended] = []
    left_alone, unreadable = list[str](), list[Unreadable]()
    for path, project in _told_meanwhile(files):
        rules = [rule for rule in project.of_sources if rule.safety in allowed]
        try:
            if (found := mend(path, rules)) is not None:
                mended.append(found)
            elif why := why_left_alone(path, rules):
                left_alone.append(f"{path} is left alone: {why}")
        except Unreadable as error:
            unreadable.append(error)
    _tell(left_alone)
    return _Mending(mended=mended, unreadable=unreadable)


def _end_after_diff(mending: _Mending, unreadable: Sequence[Unreadable], jobs: Sequence[str]) -> None:
    from hasten.report.finding_formats import as_diff

    mended = mending.mended
    for each in mended:
        before, after = each.before.encode(each.encoding), each.after.encode(each.encoding)
        typer.echo(as_diff(str(each.path), before, after), nl=False)
    count = sum(each.count for each in mended)
    typer.echo(f"{count:,} can be mended in {len(mended):,} {'file' if len(mended) == 1 else 'files'}", err=True)
    _tell(f"{job} was not looked at: --diff is for files" for job in jobs)
    _end([*unreadable, *mending.unreadable], bool(mended))
    raise typer.Exit


def _tell(notes: Iterable[str]) -> None:
    from hasten.facts.formatting import printable

    for each in notes:
        typer.echo(printable(each), err=True)


def _write(mended: Sequence[Mended]) -> None:
    from hasten.doctor.lint.fixes import write

    for each in mended:
        write(each)
        typer.echo(f"{each.path}: {each.count:,} mended", err=True)


def _show(
    findings: Sequence[Finding], files: int, output: Format, projects: Sequence[_Project], job: str | None
) -> None:
    from hasten.report.finding_formats import as_github, as_json, as_text, summary

    if output is Format.JSON:
        typer.echo(as_json(findings))
    elif output is Format.SARIF:
        from importlib.metadata import version

        from hasten.report.finding_formats import as_sarif

        rules = dict.fromkeys((rule.code, rule.name, rule.headline) for each in projects for rule in each.rules)
        typer.echo(as_sarif(findings, list(rules), version("hasten")))
    elif output is Format.GITHUB:
        if findings:
            typer.echo(as_github(findings))
    else:
        if findings:
            typer.echo(as_text(findings))
        typer.echo(f"\n{summary(findings, files)}")
        offer(_next(findings, job))


def _next(findings: Sequence[Finding], job: str | None) -> str:
    if job is not None:
        return command("tune", job, None)
    from hasten.facts.finding import Safety

    mended = next((each for each in findings if each.safety is Safety.SAFE), None)
    if mended is not None:
        return shlex.join(["hasten", "doctor", mended.path, "--diff"])
    return f"hasten explain {findings[0].code}" if findings else "hasten techniques"


def _end(unreadable: Sequence[Unreadable], found: bool) -> None:
    for error in unreadable:
        typer.echo(str(error), err=True)
    if unreadable:
        raise typer.Exit(Unreadable.exit_code)
    if found:
        raise typer.Exit(FOUND)


def _told_meanwhile(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items, and how many there were so far where a person waits for them."""
    begun, told = time.monotonic(), False
    try:
        for number, each in enumerate(items, start=1):
            yield each
            if sys.stderr.isatty() and time.monotonic() - begun > _QUIET_SECONDS:
                told = True
                typer.echo(f"\r{number:,} files looked at", nl=False, err=True)
    finally:
        if told:
            typer.echo("\r\033[K", nl=False, err=True)
