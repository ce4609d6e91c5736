"""Runs a script by a plan: python -m hasten.scripts.running.start PLAN FILE OPTIONS. No file is changed. An empty PLAN
changes nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from hasten.errors import HastenError, PlanError
from hasten.facts.plan_file import is_sealed, read_plan
from hasten.facts.ranks import leads
from hasten.regular_files import read_regular
from hasten.scripts.edits.patch import is_applied_to
from hasten.scripts.edits.places import edited_sources
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
    read = read_plan(plan)
    if not read.choices:
        return {}
    if read.script is None:
        fix = f"make one for this script: hasten tune {' '.join(program.words)}"
        raise PlanError("is the plan of a job, not of a script", where=plan, fix=fix)
    folder = program.path.parent
    choices = [each.choice for each in read.choices]
    if read.script.script != program.path.name:
        what = f"is the plan of {read.script.script}, not of {program.path.name}"
        raise PlanError(what, where=plan, fix=f"make one for this script: hasten tune {' '.join(program.words)}")
    patch = Path(plan).with_suffix(".patch")
    is_as_tuned = is_sealed(read_regular(Path(plan)).decode())  # an edited plan has other choices than its patch
    if is_as_tuned and is_applied_to(program.path, read.script, patch):
        if leads():
            sys.stderr.write(f"{patch} is applied to {program.name}, so the plan changes nothing more\n")
        return {}
    sources = edited_sources(choices, read.script, folder)
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
