"""A training script as the subject of a search: what was found in it, its trials, and the patch."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.tuning.search_run import Subject
from hasten.errors import Misconfigured
from hasten.report.script_sentence import found_lines
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import Lines

if TYPE_CHECKING:
    from hasten.facts.plan import Plan
    from hasten.facts.scripts.seen import Seen
    from hasten.report.terminal.progress_bar import ProgressBar
    from hasten.scripts.running.program import Program


def script_subject(name: str, words: Sequence[str], steps: int | None, output: CommandOutput) -> Subject:
    """name: of the file, or "-m MODULE". words: the script's own. Raises HastenError where the script fails, shows no
    training, or its length is not known."""
    from hasten.scripts.running.program import program_of

    program = program_of([*name.split(" ", 1), *words])
    program.path  # noqa: B018  raises where there is none
    output.header(f"Tuning {shlex.join(program.words)}")
    with closing(output.progress("starting the script")) as waiting:
        seen = _observed(program, waiting)
    if steps is not None:
        seen = replace(seen, length=replace(seen.length, steps=steps, why=""))
    output.facts("", found_lines(seen))
    if seen.length.steps is None:
        fix = f"say how many: {shlex.join(['hasten', 'tune', '--steps', '1000', *program.words])}"
        raise Misconfigured(f"its length is not known: {seen.length.why}", where=program.name, fix=fix)
    from hasten.checkpoint.folders.process_folder import process_folder
    from hasten.scripts.edits.places import places_of
    from hasten.scripts.proving.gradient_prover import ScriptGradientProver
    from hasten.scripts.trials.script_arms import script_arms

    places = places_of(seen, program.path)

    def following(plan: Path | None) -> str:
        planned = [] if plan is None else ["--plan", str(plan)]
        return shlex.join(["hasten", "run", *planned, *program.words])

    return Subject(
        name=shlex.join(program.words),
        arms=lambda others: script_arms(program, seen, process_folder(), others),
        prover=ScriptGradientProver,
        again=lambda own: ["hasten", "tune", *own, *(["--steps", str(steps)] if steps else []), *program.words],
        following=following,
        completed=lambda plan: replace(plan, script=places),
        written=lambda plan, file: _write_patch(plan, program, file),
    )


def _observed(program: Program, waiting: ProgressBar) -> Seen:
    from hasten.scripts.trials.script_arms import observe
    from hasten.tuning.trials.trial_outcome import ArmFailed

    try:
        return observe(program, lambda: waiting(0, 1))
    except ArmFailed as failure:
        raise failure.as_error() from failure


def _write_patch(plan: Plan, program: Program, file: Path) -> Lines:
    """Beside the plan, as `git apply` reads it from here. None where the plan changes nothing."""
    from hasten.checkpoint.files import write_atomically
    from hasten.scripts.edits.places import edited_sources

    if not plan.choices or plan.script is None:
        return []
    folder, parts = program.path.parent, list[str]()
    for name, text in edited_sources([each.choice for each in plan.choices], plan.script, folder).items():
        path = os.path.relpath(folder / name)
        before = (folder / name).read_bytes().decode()
        parts += _diff(before, text, path)
    patch = file.with_suffix(".patch")
    write_atomically(patch, "".join(parts).encode())
    return [("patch", f"{patch}: git apply {shlex.quote(str(patch))}")]


def _diff(before: str, after: str, path: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
