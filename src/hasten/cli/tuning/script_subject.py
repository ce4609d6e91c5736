"""A training script as the subject of a search: what was found in it, its trials, and the patch."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.tuning.launcher import hasten_words, python_words
from hasten.cli.tuning.script_words import MODULE, behind_the_script, is_console_script, program_words
from hasten.cli.tuning.search_run import Subject
from hasten.errors import HastenError, Misconfigured
from hasten.regular_files import read_regular
from hasten.report.display import listed
from hasten.report.plan_sentence import NO_FASTER_SCRIPT
from hasten.report.script_sentence import found_lines
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import Lines
from hasten.scripts.running.notebook import is_notebook, place_in
from hasten.users_code import is_users_file

if TYPE_CHECKING:
    from hasten.facts.plan import Plan
    from hasten.facts.scripts.seen import Seen
    from hasten.facts.trials import Doing
    from hasten.report.terminal.progress_bar import ProgressBar
    from hasten.scripts.edits.patch import PatchedFile
    from hasten.scripts.running.program import Program


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedOfScript:
    """plan: its file. steps: of the whole training, where it is given. applies: the patch is to be applied."""

    plan: Path
    steps: int | None
    applies: bool

    @property
    def patch(self) -> Path:
        return self.plan.with_suffix(".patch")


def command_of(name: str, words: Sequence[str]) -> str:
    """That runs the script without a plan: by Python, where that can."""
    starts = hasten_words("run") if is_notebook(name) or is_console_script(name) else python_words()
    if is_console_script(name) and starts == ["hasten", "run"]:
        starts = []
    return shlex.join([*starts, *program_words(name, words)])


def applied_before(asked: AskedOfScript, name: str) -> str:
    """A sentence; empty where the patch of an earlier search of this script is not applied, or there is none."""
    from hasten.scripts.edits.patch_file import read_patch
    from hasten.scripts.running.program import program_of

    patch = read_patch(asked.patch)
    if patch is None or not patch.is_for(program_of(program_words(name, ())).path) or not patch.is_applied():
        return ""
    return f"{asked.patch} is applied already: nothing is changed"


def script_subject(name: str, words: Sequence[str], asked: AskedOfScript, output: CommandOutput) -> Subject:
    """name: of the file or console script, or "-m MODULE". words: the script's own. Raises HastenError where the script
    fails, shows no training, or its length is not known; or where the patch's file is another's."""
    from hasten.checkpoint.plan_output import check_place
    from hasten.scripts.running.program import program_of

    program = program_of(program_words(name, words))
    if not is_users_file(str(program.path)):
        fix = "install the project by pip install -e, so that its sources can be edited"
        raise Misconfigured("is installed, and not a source of this project", where=program.name, fix=fix)
    check_place(asked.plan)
    _check_patch(asked.patch)
    output.header(f"Tuning {shlex.join(program.words)}")
    with closing(output.progress("starting the script")) as waiting:
        seen = _observed(program, waiting)
    if asked.steps is not None:
        seen = replace(seen, length=replace(seen.length, steps=asked.steps, why="", again=""))
    output.facts("", [*found_lines(seen, place_in), *_earlier_patch_kept(asked.patch)])
    if seen.length.steps is None:
        fix = f"say how many: {shlex.join(['hasten', 'tune', '--steps', 'N', *program.words])}"
        raise Misconfigured(f"its length is not known: {seen.length.why}", where=program.name, fix=fix)
    from hasten.checkpoint.folders.process_folder import process_folder
    from hasten.scripts.edits.places import places_of
    from hasten.scripts.proving.script_prover import ScriptProver
    from hasten.scripts.trials.script_arms import script_arms

    places = places_of(seen, program)
    patch = _Patch(program=program, seen=seen, asked=asked)
    longer = ["--steps", str(asked.steps)] if asked.steps else []
    return Subject(
        name=shlex.join(program.words),
        plain=shlex.join([*python_words(), *program.words]),
        arms=lambda others: script_arms(program, seen, process_folder(), others),
        prover=ScriptProver,
        again=lambda own: [
            *hasten_words("tune"),
            *own,
            *longer,
            *(["--apply"] if asked.applies else []),
            *program.words,
        ],
        following=patch.following,
        completed=lambda plan: replace(plan, script=places),
        written=patch.written,
        refuted=lambda: patch.refuted,
        fields=lambda: {"patch": patch.file, "applied": patch.is_applied},
        nothing_proven=NO_FASTER_SCRIPT,
    )


def _observed(program: Program, waiting: ProgressBar) -> Seen:
    from hasten.scripts.trials.script_arms import observe
    from hasten.tuning.trials.trial_outcome import ArmFailed

    try:
        return observe(program, lambda: waiting(0, 1))
    except ArmFailed as failure:
        error = failure.as_error(shlex.join([*python_words(), *program.words]))
        error.fix = _fix_for(error, program) or error.fix
        raise error from failure


def _fix_for(error: HastenError, program: Program) -> str:
    """Where more is known than the error says; empty elsewhere."""
    from hasten.training.setup.no_job import functions_in

    ours, others = behind_the_script(program.options)
    if ours and "exit code 2" in error.what:
        own = shlex.join([*hasten_words("tune"), *ours, *replace(program, options=tuple(others)).words])
        return f"options of hasten stand before the script: {own}"
    if "EOFError" in error.what:
        return "it asks for input(), and nobody answers in a trial: let an option give the answer"
    jobs = [name for name, makes_a_job in functions_in(str(program.path)).items() if makes_a_job]
    if jobs and isinstance(error, Misconfigured):
        name = f"{program.name}:{jobs[0]}"
        return f"it defines a job, which is tuned by its name: {shlex.join(['hasten', 'tune', name])}"
    return ""


def _check_patch(patch: Path) -> None:
    from hasten.scripts.edits.patch_file import is_written_by_hasten, read_patch

    fix = "choose another name with --output, or move it away"
    if os.path.lexists(patch) and not (patch.is_file() and is_written_by_hasten(patch)):
        raise Misconfigured("already exists, and hasten tune did not write it", where=str(patch), fix=fix)
    written = read_patch(patch)
    if written is not None and written.is_applied():
        what = "is applied, and a new search would overwrite the file that can undo it"
        raise Misconfigured(what, where=str(patch), fix=f"undo it: git apply --reverse {patch}; or {fix}")


def _earlier_patch_kept(file: Path) -> Lines:
    """Under another name, where its files have changed since it was made: by the patch and then by hand, perhaps."""
    from hasten.checkpoint.files import move
    from hasten.scripts.edits.patch_file import read_patch

    patch = read_patch(file)
    if patch is None or patch.sources() is not None:
        return []
    numbered = (file.with_name(f"{file.name}.{number}") for number in itertools.count(1))
    kept = next(each for each in numbered if not os.path.lexists(each))
    move(file, kept)
    return [("kept", f"{kept}: the patch of an earlier search, whose files have changed since")]


@dataclass(kw_only=True, slots=True)
class _Patch:
    """Of the plan that a search has found: accepted, and then written beside it, or applied."""

    program: Program
    seen: Seen
    asked: AskedOfScript
    file: Path | None = None  # of the patch; None where none was written
    is_applied: bool = False
    applying: str = ""  # the command; empty where no patch is to be applied
    refuted: str = ""  # why the patched file was not accepted

    def following(self, plan: Path | None) -> str:
        if self.applying:
            return self.applying
        own = self.program
        if plan is None or self.is_applied or self.refuted:
            return command_of(f"{MODULE} {own.name}" if own.is_module else own.name, own.options)
        return shlex.join([*hasten_words("run"), "--plan", str(plan), *own.words])

    def written(self, plan: Plan, file: Path, report: Callable[[Doing], None] | None) -> Lines:
        """The patch of an earlier search is removed where there is none now."""
        from hasten.checkpoint.files import remove_file, write_atomically
        from hasten.scripts.edits.patch import apply, options_without_effect, patch_of, patched_files

        files, patch = patched_files(plan, self.program.path.parent) if plan.choices else [], self.asked.patch
        lines, passes = self._accepted(plan, files, report) if files else ([], False)
        if not passes:
            if report is not None and patch.is_file():
                remove_file(patch)
            return lines
        here = _folder_of(files)
        lines += _write_notebooks(files, file.parent)
        if names := options_without_effect(files):
            verb = "has" if len(names) == 1 else "have"
            lines.append(
                ("options", f"{listed(names)} {verb} no effect in the patched script, which sets the value itself")
            )
        write_atomically(patch, patch_of(files, here, patch, read_regular(file), self.program.path))
        self.file = patch
        where = [] if here == Path.cwd() else ["-C", os.path.relpath(here)]
        command, relative = ["git", *where, "apply"], os.path.relpath(patch, here)
        changed = listed([os.path.relpath(each.path) for each in files])
        if self.asked.applies:
            apply(files)
            self.is_applied = True
            return [*lines, ("applied", f"to {changed}"), ("undo", shlex.join([*command, "--reverse", relative]))]
        without = f"{self.following(file)}, which changes no file"
        self.applying = shlex.join([*command, relative])
        return [*lines, ("patch", f"{patch}, of {changed}"), ("or", without)]

    def _accepted(
        self, plan: Plan, files: Sequence[PatchedFile], report: Callable[[Doing], None] | None
    ) -> tuple[Lines, bool]:
        from hasten.checkpoint.folders.process_folder import process_folder
        from hasten.scripts.proving.acceptance import PatchedScript
        from hasten.scripts.trials.script_arms import script_arms
        from hasten.tuning.trials.other_programs import OtherPrograms

        why = "the search was interrupted before the patched file was run: run the same command to continue"
        if report is None:
            return [("no patch", why)], False
        script = PatchedScript(program=self.program, seen=self.seen, plan=plan, files=files, place=process_folder())
        try:
            found = script.accepted(script_arms(self.program, self.seen, process_folder(), OtherPrograms(None)), report)
        except KeyboardInterrupt:
            return [("no patch", why)], False
        says = f"the patched file, run plainly, {found.reason}"
        if not found.passes:
            self.refuted = says
            return [], False
        return [("accepted", says)], True


def _write_notebooks(files: Sequence[PatchedFile], folder: Path) -> Lines:
    """A copy of each notebook, edited."""
    from hasten.checkpoint.files import write_atomically

    lines: Lines = []
    for each in files:
        copy = folder / f"{each.path.stem}.hasten{each.path.suffix}"
        if not is_notebook(each.path):
            continue
        if copy.exists() and read_regular(copy) != each.after:
            lines.append(("notebook", f"{copy} exists and is not overwritten: move it, and run the same command again"))
        else:
            write_atomically(copy, each.after)
            lines.append(("notebook", f"{copy}: a copy with the plan's changes"))
    return lines


def _folder_of(files: Sequence[PatchedFile]) -> Path:
    """From which the paths in a patch are: the present one; where a file lies outside of it, the one above both."""
    here = Path.cwd()
    return Path(os.path.commonpath([here, *(each.path for each in files)]))
