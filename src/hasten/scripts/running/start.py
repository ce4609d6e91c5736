"""Runs a script by a plan: python -m hasten.scripts.running.start PLAN FILE OPTIONS. No file is changed. An empty PLAN
changes nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from hasten.errors import HastenError, PlanError
from hasten.facts.ranks import leads
from hasten.regular_files import read_regular
from hasten.scripts.edits.patch_file import read_patch
from hasten.scripts.edits.source_text import text_of
from hasten.scripts.running.program import Program, program_of, run


def main() -> None:
    plan, *words = sys.argv[1:]
    program = program_of(words)
    edited = edited_by(plan, program) if plan else {}
    try:
        run(program, edited)
    except SystemExit:
        raise
    except BaseException as error:
        trace = _of_the_script(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.excepthook = lambda *shown: None
        raise  # as Python ends by an exception: with its exit code, after Ctrl-C by the signal


def edited_by(plan: str, program: Program) -> dict[str, str]:
    """Absolute path -> the source that the plan makes of it; none where its patch is applied. Raises PlanError."""
    file, folder = Path(plan), program.path.parent
    patch = read_patch(file.with_suffix(".patch")) if file.is_file() else None
    if patch is None or not patch.is_for(program.path) or not patch.is_made_from(read_regular(file)):
        return _edited_from_places(plan, program)
    if patch.is_applied():
        if leads():
            sys.stderr.write(f"{patch.path} is applied to {program.name}, so the plan changes nothing more\n")
        return {}
    if (sources := patch.sources()) is None:
        return _edited_from_places(plan, program)
    names = {os.path.relpath(path, patch.script.parent): text_of(source) for path, source in sources.items()}
    return {os.path.normpath(folder / name): text for name, text in names.items()}


def _edited_from_places(plan: str, program: Program) -> dict[str, str]:
    """By the places in its sources that the plan names."""
    from hasten.facts.plan_file import read_plan
    from hasten.scripts.edits.places import edited_sources

    read = read_plan(plan)
    if not read.choices:
        return {}
    fix = f"make one for this script: hasten tune {' '.join(program.words)}"
    if read.script is None:
        raise PlanError("is the plan of a job, not of a script", where=plan, fix=fix)
    if read.script.script != program.path.name:
        what = f"is the plan of {read.script.script}, not of {program.path.name}"
        raise PlanError(what, where=plan, fix=fix)
    folder = program.path.parent
    sources = edited_sources([each.choice for each in read.choices], read.script, folder)
    return {os.path.normpath(folder / file): text for file, text in sources.items()}


def _of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames of hasten that started it."""
    here = os.path.dirname(os.path.abspath(__file__))
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(here):
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    try:
        main()
    except HastenError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
