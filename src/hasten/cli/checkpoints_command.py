"""The checkpoints of a run: `hasten checkpoints` and `hasten export`."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import AsJson, Quiet, app, ends_with_exit_code
from hasten.cli.run_history import job_of, resume_command, words_of
from hasten.facts.formatting import as_json as json_value
from hasten.facts.formatting import byte_size
from hasten.report.display import UNKNOWN, many, printable, table, time_left
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput

if TYPE_CHECKING:
    from hasten.checkpoint.listing import Listed

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/job-1.")]


@app.command()
@ends_with_exit_code
def checkpoints(
    run: RunPath,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a run. It reads every byte, so it finds damaged ones.

    \b
    Examples:
      hasten checkpoints runs/job-1
      hasten checkpoints runs/job-1 --json
    """
    from hasten.checkpoint.listing import listed

    with CommandOutput(quiet=quiet, as_json=as_json) as output:
        output.header(f"Checkpoints of {run}")
        with closing(output.progress("verifying")) as waiting:
            found = listed(run, waiting)
        newest = next((each for each in found if each.damage is None), None)
        now = time.time()  # noqa: TID251  another process or machine may have saved
        if found:
            output.table(_lines(found, newest, now))
        notes = [("note", f"step {_step(each)}: {each.damage}") for each in found if each.damage is not None]
        output.result(_sentence(found, newest), notes, _next(run, found, newest), _answer(run, found, newest, now))


@app.command()
@ends_with_exit_code
def export(
    run: RunPath,
    file: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The new file: NAME.safetensors.")],
    step: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Step of the checkpoint; default: the newest verified one.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write the weights of a run as one safetensors file. It does not need the job's code.

    They are the weights that the run would save if it ended at that checkpoint, under the names of the job's own model.
    It never replaces an existing file.

    \b
    Examples:
      hasten export runs/job-1 -o model.safetensors
      hasten export runs/job-1 -o early.safetensors --step 500
      hasten export runs/job-1 -o model.safetensors --json
    """
    from hasten.training.weights.export import export_weights

    with CommandOutput(quiet=quiet, as_json=as_json) as output:
        output.header(f"Exporting the weights of {run}")
        with closing(output.progress("reading")) as waiting:
            done = export_weights(run, file, step, waiting)
        is_last = done.kept_step in (None, done.step)
        best = "" if is_last else f"; they are those of step {done.kept_step:,}, the best so far"
        sentence = Sentence(
            headline=f"Exported step {done.step:,} to {file}",
            small_print=f"{done.tensors:,} tensors, {byte_size(done.bytes)}, from {done.checkpoint}{best}",
        )
        use = f"model.load_state_dict(hasten.read_weights({json.dumps(str(file))}))"
        following = shlex.join(["hasten", "train", job_of(run) or "JOB", "--weights", str(file), *words_of(run)])
        facts = [*(("note", text) for text in done.damaged), ("use", use)]
        output.result(sentence, facts, following, {"run": run, "weights": file, **json_value(done)})


def _sentence(found: Sequence[Listed], newest: Listed | None) -> Sentence:
    count, damaged = many(len(found), "checkpoint"), sum(each.damage is not None for each in found)
    if newest is not None:
        state = f"{damaged:,} of {count} cannot be used" if damaged else f"{count}, all verified"
        return Sentence(headline=f"Resumes at step {newest.step:,}, from {newest.path}", small_print=state)
    if not found:
        return Sentence(headline="Resumes from the beginning", small_print="there is no checkpoint yet")
    why = "of another version" if any(each.of_another_version for each in found) else "damaged"
    return Sentence(headline=f"Never resumes: all checkpoints are {why}", small_print="start a new run")


def _next(run: Path, found: Sequence[Listed], newest: Listed | None) -> str:
    """The command that resumes the run, or begins it again in a new folder where no checkpoint is whole."""
    job = job_of(run) or "JOB"
    if newest is not None or not found:
        return resume_command(job, run)
    return shlex.join(["hasten", "train", job, *words_of(run)])


def _lines(found: Sequence[Listed], newest: Listed | None, now: float) -> list[str]:
    """A table: numbers to the right, words to the left."""
    rows, longest = list[list[str]](), max(len(_step(each)) for each in found)
    for each in found:
        about = each.manifest
        mark = "→ " if each is newest else "  "
        state = "of another version" if each.of_another_version else "verified" if each.damage is None else "damaged"
        of_manifest = [UNKNOWN] * 4
        if about is not None:
            of_manifest = [f"{about.epoch + 1:,}", _age(about.saved_at, now), byte_size(about.bytes), about.reason]
            state = f"best, {state}" if about.best else state
        words = [printable(text) for text in (of_manifest.pop(), state)]
        rows.append([mark + _step(each).rjust(longest), *of_manifest, *words])
    return table([f"  {'step'.rjust(longest)}", "epoch", "age", "size", "why", "state"], rows, words=(4, 5))


def _step(each: Listed) -> str:
    return f"{each.step:,}" + (f" ({each.attempt})" if each.attempt > 1 else "")


def _age(saved_at: float, now: float) -> str:
    # By a clock that was wrong, or another machine's, it may lie ahead.
    return UNKNOWN if saved_at > now + 1 else time_left(max(now - saved_at, 0.0))


def _answer(run: Path, found: Sequence[Listed], newest: Listed | None, now: float) -> dict[str, Any]:
    return {
        "run": run,
        "resumes_from": newest.path if newest is not None else None,
        "checkpoints": [_fields(each, now) for each in found],
    }


def _fields(each: Listed, now: float) -> dict[str, Any]:
    """age_seconds is by this clock, and below zero where that says so."""
    about = each.manifest
    of_manifest = {
        name: None if about is None else getattr(about, name)
        for name in ("epoch", "saved_at", "bytes", "reason", "best")
    }
    return {
        "path": each.path,
        "step": each.step,
        "attempt": each.attempt,
        "verified": each.damage is None,
        "damage": each.damage,
        **of_manifest,
        "age_seconds": None if about is None else now - about.saved_at,
    }
