"""`hasten prove resume`: whether a run that is killed and resumed is the one that nobody disturbed.

A difference that is the job's own says nothing of resuming, so it is no harm, and has the code of what is not proven.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import JobName, PlanPath, command, ending_in_one_block, prove
from hasten.errors import HARMED, NOT_PROVEN

if TYPE_CHECKING:
    from hasten.measure.run_difference import Difference
    from hasten.tune.resume.resume_proof import Kill, ResumeProof

EXIT_CODES = {"bit-exact": 0, "differs": HARMED, "not deterministic": NOT_PROVEN, "not killed": NOT_PROVEN}
PROGRAM = "hasten.cli.prove.resume_worker:train"
KILLS, STEPS, SEED = 10, 60, 0  # where nobody says another
_ADVICE = {
    "differs": "a run keeps what its checkpoint holds: let the model keep what it counts or remembers in buffers "
    "(register_buffer), let optimizers and schedules keep theirs in state_dict(), and draw from torch's, NumPy's or "
    "Python's own generator, or from one that the model or the loss holds",
    "not deterministic": "train from nothing that is another each time: the clock, a process's number, the order of a "
    "set, a generator without a seed; and let torch say which operation is not deterministic: "
    "torch.use_deterministic_algorithms(True)",
    "not killed": "let it train for longer: more --steps, or a longer job",
}


@prove.command()
@ending_in_one_block
def resume(
    job: JobName,
    plan: PlanPath = None,
    kills: Annotated[int, typer.Option(metavar="N", min=1, help="How often the run is killed.")] = KILLS,
    steps: Annotated[
        int, typer.Option(metavar="N", min=2, help="Only the first steps of the planned run, whose length stays.")
    ] = STEPS,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the instants at which it is killed.")] = SEED,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """Prove that a run that is killed goes on to the last bit. Exit code 0 says that it does.

    It is killed at any instant, and resumed, again and again.

    Other exit codes: 16, it does not; 17, nothing is proven, as the job differs from itself; 130, interrupted; 143,
    terminated; those of errors where a run fails.

    \b
    Examples:
      hasten prove resume digits.py:job
      hasten prove resume digits.py:job --plan plan.toml --kills 30 --steps 200
    """
    found = proven(job, plan, kills=kills, steps=steps, seed=seed)
    again = command_of(job, plan, kills=kills, steps=steps, seed=seed)
    next_command = command("train", job, plan) if found.verdict == "bit-exact" else again
    if as_json:
        typer.echo(json.dumps(answer(found) | {"next": next_command}))
    else:
        show(found, job, plan, next_command)
    raise typer.Exit(EXIT_CODES[found.verdict])


class Shown:
    """Tells on standard error how far the proof has come: a bar for each process, a line for each kill.

    Where lines stand in the place of a bar, the runs that are killed have theirs by that.
    """

    def __init__(self) -> None:
        self._what, self._waiting = "", None

    def trains(self, what: str, step: int, steps: int) -> None:
        from hasten.report.terminal.output import is_plain
        from hasten.report.terminal.progress_bar import Waiting
        from hasten.tune.resume.resume_proof import UNDISTURBED

        if what not in UNDISTURBED and is_plain(sys.stderr):
            return
        if what != self._what or self._waiting is None:
            self.close()
            self._what, self._waiting = what, Waiting(what)
        self._waiting(step, steps)

    def killed(self, number: int, wanted: int, kill: Kill) -> None:
        from hasten.report.terminal.output import write_line

        self.close()
        saved = f"step {kill.saved_step:,} is saved" if kill.saved_step else "nothing is saved yet"
        write_line(sys.stderr, f"kill {number} of {wanted}, at step {kill.step:,}, {kill.phase.value}: {saved}")

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
        self._waiting = None


def proven(job: str, plan: Path | None, *, kills: int, steps: int, seed: int) -> ResumeProof:
    from hasten.checkpoint.folders.process_folder import process_folder
    from hasten.cli.application import read
    from hasten.training.setup.load_job import split_name
    from hasten.tune.resume.resume_proof import prove_resume
    from hasten.tune.resume.run_process import interpreter

    split_name(job)
    read(plan)
    shown = Shown()
    try:
        named = None if plan is None else str(plan)
        begin, place = interpreter(PROGRAM), process_folder()
        return prove_resume(job, named, begin, shown, kills=kills, steps=steps, seed=seed, place=place)
    finally:
        shown.close()


def command_of(job: str, plan: Path | None, *, kills: int, steps: int, seed: int) -> str:
    planned = [] if plan is None else ["--plan", str(plan)]
    options = {"--kills": (kills, KILLS), "--steps": (steps, STEPS), "--seed": (seed, SEED)}
    given = [word for name, (value, usual) in options.items() if value != usual for word in (name, str(value))]
    return shlex.join(["hasten", "prove", "resume", job, *planned, *given])


def show(proof: ResumeProof, job: str, plan: Path | None, next_command: str) -> None:
    from hasten.facts.formatting import byte_size
    from hasten.report.display import count, duration
    from hasten.report.terminal.output import show as show_lines

    pace, extent = proof.pace, proof.extent
    planned = "" if proof.total_steps in (None, proof.steps) else f" of the planned {count(proof.total_steps or 0)}"
    begin = duration(pace.starting_seconds + pace.going_on_seconds)
    holds = f"{count(extent.tensors)} tensors of {byte_size(extent.bytes)} and {count(extent.values)} values"
    lines = [
        (
            "trained",
            f"{proof.steps:,} steps{planned}, {duration(pace.step_seconds)} each, saved every {proof.save_every:,}",
        ),
        ("begins", f"in {begin}, each time"),
        ("killed", killed(proof)),
        ("compared", f"{proof.lines:,} lines of the log; a checkpoint of {holds}"),
        ("verdict", sentence(proof)),
    ]
    if proof.verdict in _ADVICE:
        lines.append(("fix", _ADVICE[proof.verdict]))
    show_lines(job if plan is None else f"{job} with {plan}", [*lines, ("next", next_command)])


def killed(proof: ResumeProof) -> str:
    """How often, and in what."""
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
            return "nothing is proven: the run ended before anything could kill it"
        short = "" if len(proof.kills) == proof.wanted else f"; {_times(proof.wanted)} were wanted, but it ended before"
        return f"bit-exact: killed and resumed {kills}, the run is the one that nobody disturbed{short}"
    if proof.itself is not None:
        return (
            f"not deterministic: {difference}. But two runs that nobody disturbed are not the same either: "
            f"{proof.itself}. So nothing can be said of resuming"
        )
    origin = f", in a process that had gone on from step {proof.went_on_at:,}" if proof.went_on_at else ""
    made = f"{len(proof.kills):,} kill" + ("" if len(proof.kills) == 1 else "s")
    return f"not exact after {made}{origin}: {difference}. A second run that nobody disturbed is the same as the first"


def answer(proof: ResumeProof) -> dict[str, Any]:
    extent, pace = proof.extent, proof.pace
    return {
        "verdict": proof.verdict,
        "sentence": sentence(proof),
        "steps": proof.steps,
        "total_steps": proof.total_steps,
        "save_every": proof.save_every,
        "wanted": proof.wanted,
        "runs": proof.runs,
        "kills": [
            {"phase": kill.phase.name.lower(), "step": kill.step, "saved_step": kill.saved_step} for kill in proof.kills
        ],
        "compared": {
            "lines": proof.lines,
            "tensors": extent.tensors,
            "tensor_bytes": extent.bytes,
            "values": extent.values,
        },
        "seconds": {
            "starting": pace.starting_seconds,
            "going_on": pace.going_on_seconds,
            "step": pace.step_seconds,
            "save": pace.save_seconds,
        },
        "difference": _told(proof.difference),
        "went_on_at": proof.went_on_at,
        "itself": _told(proof.itself),
    }


def _told(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    expected, found = difference.expected, difference.found
    return {
        "step": difference.step,
        "what": difference.what,
        "expected": expected.text,
        "expected_hex": expected.hex,
        "found": found.text,
        "found_hex": found.hex,
    }


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
