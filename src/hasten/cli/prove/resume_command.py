"""`hasten prove resume`: whether a run that is killed and resumed is bit-identical to an undisturbed one.

If two undisturbed runs of the job differ, resuming cannot be judged: the exit code is that of an inconclusive proof.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import (
    AsJson,
    JobName,
    PlanPath,
    Quiet,
    SetOption,
    command,
    ends_with_exit_code,
    job_options,
    prove,
    read,
)
from hasten.errors import HARMED, NOT_PROVEN
from hasten.report.display import count, many, time_left
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import Lines, Output
from hasten.report.terminal.progress_bar import ProgressBar

if TYPE_CHECKING:
    from hasten.training.setup.job_options import JobOptions
    from hasten.tuning.resume.resume_proof import Kill, ResumeProof

EXIT_CODES = {"bit-exact": 0, "differs": HARMED, "not deterministic": NOT_PROVEN, "not killed": NOT_PROVEN}
KILLS, STEPS, SEED = 10, 60, 0
_ADVICE = {
    "differs": "declare all state that training changes: buffers of the model (register_buffer), or Job(state={...})",
    "not deterministic": "remove what differs between two runs: the clock, a process id, the order of a set, a random "
    "generator without a seed; torch.use_deterministic_algorithms(True) names operations that are not deterministic",
    "not killed": "train for longer: more --steps, or a longer job",
}


@prove.command()
@ends_with_exit_code
def resume(
    context: typer.Context,
    job: JobName,
    plan: PlanPath = None,
    settings: SetOption = None,
    kills: Annotated[int, typer.Option(metavar="N", min=1, help="How often the run is killed.")] = KILLS,
    steps: Annotated[
        int, typer.Option(metavar="N", min=2, help="Train only the first N steps; schedules keep the planned length.")
    ] = STEPS,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the instants of the kills.")] = SEED,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Prove that a killed and resumed run is bit-identical. Exit code 0: it is.

    The run is compared with an undisturbed one. It is killed at random instants and resumed, again and again.

    Other exit codes: 16, the runs differ; 17, inconclusive: two undisturbed runs differ, or the run ended too early;
    130, interrupted; 143, terminated; the code of the error if a run fails.

    \b
    Examples:
      hasten prove resume digits.py:job
      hasten prove resume digits.py:job --plan plan.toml --kills 30 --steps 200
      hasten prove resume digits.py:job --json
    """
    given = job_options(context, settings)
    with CommandOutput(quiet=quiet, as_json=as_json) as output:
        output.header(f"Proving that {job if plan is None else f'{job} with {plan}'} resumes exactly")
        found = _proven(job, plan, given, output, kills=kills, steps=steps, seed=seed)
        following = _next(found, job, plan, given, kills=kills, steps=steps, seed=seed)
        said = Sentence(headline=sentence(found), small_print=trained(found))
        output.result(said, _facts(found), following, _answer(found))
    raise typer.Exit(EXIT_CODES[found.verdict])


def _next(
    found: ResumeProof, job: str, plan: Path | None, given: JobOptions, *, kills: int, steps: int, seed: int
) -> str:
    following = command("train", job, plan, given)
    if found.verdict != "bit-exact":
        options = {"--kills": (kills, KILLS), "--steps": (steps, STEPS), "--seed": (seed, SEED)}
        words = [word for name, (value, usual) in options.items() if value != usual for word in (name, str(value))]
        planned = [] if plan is None else ["--plan", str(plan)]
        following = shlex.join(["hasten", "prove", "resume", job, *planned, *words, *given.words])
    return following


def _proven(
    job: str, plan: Path | None, given: JobOptions, output: CommandOutput, *, kills: int, steps: int, seed: int
) -> ResumeProof:
    from hasten.checkpoint.folders.process_folder import process_folder
    from hasten.cli.prove.resume_worker import train
    from hasten.facts.machine import read_machine
    from hasten.training.setup.load_job import split_name
    from hasten.tuning.resume.resume_proof import prove_resume

    split_name(job)
    read(plan)
    output.machine(read_machine().summary)
    named = None if plan is None else str(plan)
    place = process_folder()
    with closing(ProofProgress(output)) as progress:
        trains = partial(train, given)
        return prove_resume(job, named, trains, progress, kills=kills, steps=steps, seed=seed, place=place)


class ProofProgress:
    """Shows the progress on standard error: a bar for each undisturbed run, and a line for each kill."""

    def __init__(self, output: CommandOutput) -> None:
        self._output, self._lines = output, Output(sys.stderr)
        self._what, self._began = "", 0.0  # when the run to be killed has begun
        self._waiting: ProgressBar | None = None

    def trains(self, what: str, step: int, steps: int) -> None:
        from hasten.tuning.resume.resume_proof import UNDISTURBED

        if what not in UNDISTURBED:
            self._began = self._began or time.monotonic()
            return
        if what != self._what or self._waiting is None:
            self.close()
            self._what, self._waiting = what, self._output.progress(what)
        self._waiting(step, steps)

    def killed(self, number: int, wanted: int, kill: Kill) -> None:
        self.close()
        saved = f"step {kill.saved_step:,} is saved" if kill.saved_step else "no step is saved yet"
        seconds = (time.monotonic() - self._began) / number * (wanted - number)
        left = f", about {time_left(seconds)} left" if self._began and number < wanted else ""
        if not self._output.quiet:
            self._lines.line(f"kill {number} of {wanted}, at step {kill.step:,}, {kill.phase.value}: {saved}{left}")

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
        self._waiting = None


def trained(proof: ResumeProof) -> str:
    """What was trained, how it was killed, and what was compared."""
    planned = "" if proof.total_steps in (None, proof.steps) else f" of the planned {count(proof.total_steps or 0)}"
    return (
        f"trained {proof.steps:,} steps{planned}, saved every {proof.save_every:,}; killed {killed(proof)}; compared "
        f"{proof.lines:,} lines of the log, and the last checkpoint"
    )


def _facts(proof: ResumeProof) -> Lines:
    return [("fix", _ADVICE[proof.verdict])] if proof.verdict in _ADVICE else []


def killed(proof: ResumeProof) -> str:
    """How often, and in which phases."""
    if not proof.kills:
        return "never"
    phases = Counter(kill.phase.value for kill in proof.kills)
    where = ", ".join(f"{number} {phase}" for phase, number in phases.most_common())
    runs = f" in {proof.runs} runs" if proof.runs > 1 else ""
    return f"{_times(len(proof.kills))}{runs}: {where}"


def sentence(proof: ResumeProof) -> str:
    difference, kills = proof.difference, _times(len(proof.kills))
    if difference is None:
        if not proof.kills:
            return "Inconclusive: the run ended before it could be killed"
        short = "" if len(proof.kills) == proof.wanted else f"; it ended before {_times(proof.wanted)}"
        return f"Bit-exact: killed and resumed {kills}, the run is identical to an undisturbed one{short}"
    if proof.itself is not None:
        return f"Inconclusive: {difference}. But two undisturbed runs differ as well: {proof.itself}"
    origin = f", in a process that resumed from step {proof.resumed_at:,}" if proof.resumed_at else ""
    kills = many(len(proof.kills), "kill")
    return f"Not exact after {kills}{origin}: {difference}. A second undisturbed run is identical to the first"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def _answer(proof: ResumeProof) -> dict[str, Any]:
    kills = [
        {"phase": each.phase.name.lower(), "step": each.step, "saved_step": each.saved_step} for each in proof.kills
    ]
    names = ("verdict", "steps", "total_steps", "save_every", "wanted", "runs")
    return {name: getattr(proof, name) for name in names} | {
        "kills": kills,
        "compared": {"lines": proof.lines},
        "difference": None if proof.difference is None else asdict(proof.difference),
        "resumed_at": proof.resumed_at,
        "itself": None if proof.itself is None else asdict(proof.itself),
    }
