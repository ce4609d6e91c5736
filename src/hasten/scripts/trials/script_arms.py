"""Trials of a script: each a process that runs a copy of it, edited by a plan."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hasten.checkpoint.files import remove_folder
from hasten.checkpoint.folders.process_folder import process_folder
from hasten.errors import Misconfigured
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_to_toml
from hasten.facts.scripts.seen import PreparedData, Seen, as_table, seen_of
from hasten.scripts.edits.places import places_of
from hasten.scripts.running.program import Program
from hasten.scripts.trials.prepared_data import keep
from hasten.scripts.trials.scratch import check_unchanged, copy_place, large_files
from hasten.tuning.trials.arms import Arms, Limits
from hasten.tuning.trials.other_programs import OtherPrograms
from hasten.tuning.trials.preloaded_libraries import libraries_of
from hasten.tuning.trials.process_seconds import IMPORTED_BY_SCRIPTS
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome, SentError
from hasten.tuning.trials.trial_process import TrialProcess

_SERVES = "hasten.scripts.trials."
LONGEST_SECONDS = 600.0  # of observing: importing, preparing data, and the first steps


def observe(program: Program, waiting: Callable[[], object] = lambda: None) -> Seen:
    """Runs the script for a few steps; again where it has prepared data, as its trials find them, which can need fewer
    loaders. One that fails there, as by os.makedirs("out"), or that changes them by a library in C, prepares them in
    every trial. waiting: is called meanwhile. Raises ArmFailed where it fails or shows no training."""
    seen = _observed(program, None, waiting)
    if seen.prepared is None:
        return seen
    try:
        return _observed(program, seen.prepared, waiting)
    except (ArmFailed, Misconfigured):
        remove_folder(Path(seen.prepared.folder))
        return replace(seen, prepared=None)


def _observed(program: Program, prepared: PreparedData | None, waiting: Callable[[], object]) -> Seen:
    """prepared: that it finds; None: those that it prepares are kept."""
    large, libraries = large_files(program, Path.cwd(), prepared), libraries_of(f"{program.path}:")
    process = TrialProcess(f"{_SERVES}script_observation:serve_observation", libraries, program, prepared)
    until = time.monotonic() + LONGEST_SECONDS
    try:
        process.resume()
        while (answer := process.child.messages.receive()) is None:
            if process.child.messages.ended or process.child.exit_code is not None:
                raise ArmFailed("script", Outcome.CRASHED, "it ended before it was observed")
            if time.monotonic() >= until:
                what = f"took too few steps within {LONGEST_SECONDS:g} s; {process.child.standing()}"
                raise ArmFailed("script", Outcome.HUNG, what)
            process.child.listen(0.5)
            waiting()
        if prepared is None:
            prepared = keep(answer.get("new", {}), copy_place(process.folder), _new_folder())
    finally:
        process.end()
    check_unchanged(large)
    if "failed" in answer:
        error = SentError(**answer["error"])
        raise ArmFailed("script", Outcome(answer["failed"]), answer["message"], error)
    return replace(seen_of(answer["seen"]), prepared=prepared)


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="prepared-", dir=process_folder()))


def script_arms(program: Program, seen: Seen, place: Path | None, other_programs: OtherPrograms) -> Arms:
    name, libraries = f"{program.path}:", libraries_of(f"{program.path}:")
    places, large = places_of(seen, program), large_files(program, Path.cwd(), seen.prepared)

    def launch(plan: Plan) -> TrialProcess:
        check_unchanged(large)
        planned = plan_to_toml(replace(plan, script=places))
        return TrialProcess(f"{_SERVES}script_process:serve_trial", libraries, program, as_table(seen), planned)

    return Arms(name, Limits(), place, other_programs, launch=launch, imports=IMPORTED_BY_SCRIPTS)
