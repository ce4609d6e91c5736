"""What `hasten doctor --run` does with a training script: it runs some steps of a copy, and times their parts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.cli.tuning.launcher import hasten_words, python_words
from hasten.cli.tuning.script_words import program_words
from hasten.facts.finding import Finding, ranked
from hasten.report.script_budget import budget_lines, budget_sentence, priced_rows
from hasten.report.script_sentence import found_lines
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import Lines
from hasten.scripts.running.notebook import place_in

if TYPE_CHECKING:
    from hasten.facts.scripts.script_times import ScriptTimes
    from hasten.facts.scripts.seen import Seen
    from hasten.scripts.running.program import Program


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptRun:
    program: Program
    machine: str
    seen: Seen
    times: ScriptTimes

    @property
    def files(self) -> list[Path]:
        """The script's own, and those in which its training was observed."""
        seen = self.seen
        stacks = [seen.model.called, seen.backward, *(each.made for each in seen.optimizers)]
        if seen.loader is not None:
            stacks.append(seen.loader.made)
        files = [str(self.program.path), *(call.file for stack in stacks for call in stack)]
        return [Path(os.path.relpath(each)) for each in dict.fromkeys(files)]

    def priced(self, findings: Sequence[Finding]) -> list[Finding]:
        """The most expensive first."""
        from hasten.doctor.script_prices import with_prices

        return ranked(with_prices(findings, self.times, self.seen.length))

    def show(self, findings: Sequence[Finding], shown: Sequence[Finding], notes: Lines, output: CommandOutput) -> None:
        """findings: with prices, of which these are shown to people."""
        if shown:
            output.table(priced_rows(shown))
        steps = ["--steps", "N"] if self.seen.length.steps is None else []  # without it the search is refused
        answer: dict[str, Any] = {
            "machine": self.machine,
            "observed": self.seen,
            "times": self.times,
            "run_seconds": self.times.run(self.seen.length),
            "findings": findings,
        }
        sentence = budget_sentence(self.seen, self.times, shown, len(self.files))
        output.result(sentence, notes, shlex.join([*hasten_words("tune"), *steps, *self.program.words]), answer)


def run_script(name: str, words: Sequence[str], output: CommandOutput) -> ScriptRun:
    """Show what it trains, and where its seconds go. name: of the file, or "-m MODULE". words: the script's own. Raises
    HastenError where the script fails or shows no training."""
    from hasten.scripts.running.program import program_of

    program = program_of(program_words(name, words))
    program.path  # noqa: B018  raises where there is none
    output.header(f"Running some steps of {shlex.join(program.words)}")
    from hasten.checkpoint.folders.process_folder import process_folder
    from hasten.scripts.trials.script_arms import observe, script_arms
    from hasten.scripts.trials.script_timing import PHASES, timed
    from hasten.tuning.trials.other_programs import OtherPrograms
    from hasten.tuning.trials.trial_outcome import ArmFailed

    whole = PHASES + 1
    with closing(output.progress("running")) as waiting:
        try:
            seen = observe(program, lambda: waiting(0, whole, "reading what it trains"))
            arms = script_arms(program, seen, process_folder(), OtherPrograms(None))
            times = timed(arms, seen, lambda phase, text: waiting(1 + phase, whole, text))
        except ArmFailed as failure:
            raise failure.as_error(shlex.join([*python_words(), *program.words])) from failure
    from hasten.facts.machine import read_machine

    run = ScriptRun(program=program, machine=read_machine().summary, seen=seen, times=times)
    output.facts("", [("machine", run.machine), *found_lines(seen, place_in)])
    output.facts("", budget_lines(seen, times))
    return run
