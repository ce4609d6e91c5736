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

from hasten.cli.application import app, echo_indented, ends_with_exit_code, offer
from hasten.cli.run_history import job_of, resume_command, words_of
from hasten.facts.formatting import byte_size, shortened
from hasten.report.display import UNKNOWN, printable, table, time_left
from hasten.report.terminal.output import show
from hasten.report.terminal.progress_bar import ProgressBar

if TYPE_CHECKING:
    from hasten.checkpoint.listing import Listed

_LONGEST_WORDS = 100

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/job-1.")]


@app.command()
@ends_with_exit_code
def checkpoints(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """List the checkpoints of a run. It reads every byte, so it finds damaged ones.

    \b
    Examples:
      hasten checkpoints runs/job-1
    """
    from hasten.checkpoint.listing import listed

    with closing(ProgressBar("verifying")) as waiting:
        found = listed(run, waiting)
    newest = next((each for each in found if each.damage is None), None)
    following = _next(run, found, newest)
    now = time.time()  # noqa: TID251  another process or machine may have saved
    if as_json:
        typer.echo(json.dumps(_answer(run, found, newest, now, following)))
    else:
        _show(run, found, newest, now, following)


@app.command()
@ends_with_exit_code
def export(
    run: RunPath,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The new file: NAME.safetensors.")],
    step: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Step of the checkpoint; default: the newest verified one.")
    ] = None,
) -> None:
    """Write the weights of a run as one safetensors file. It does not need the job's code.

    They are the weights that the run would save if it ended at that checkpoint, under the names of the job's own model.
    It never replaces an existing file.

    \b
    Examples:
      hasten export runs/job-1 -o model.safetensors
      hasten export runs/job-1 -o early.safetensors --step 500
    """
    from hasten.training.weights.export import export_weights

    done = export_weights(run, output, step)
    is_last = done.kept_step in (None, done.step)
    best = "" if is_last else f"; they are those of step {done.kept_step:,}, the best so far"
    show(
        f"Exported {output.name}",
        [
            *(("note", text) for text in done.damaged),
            ("step", f"{done.step:,}, from {done.checkpoint}{best}"),
            ("weights", f"{done.tensors:,} tensors, {byte_size(done.bytes)}, in {output}"),
            ("load", f"model.load_state_dict(hasten.read_weights({json.dumps(str(output))}))"),
        ],
    )
    offer(shlex.join(["hasten", "train", job_of(run) or "JOB", "--weights", str(output), *words_of(run)]))


def _show(run: Path, found: Sequence[Listed], newest: Listed | None, now: float, following: str) -> None:
    if found:
        typer.echo(printable(f"Checkpoints of {run}"))
        echo_indented(_lines(found, newest, now))
    if newest is not None:
        resumes = f"at step {newest.step:,}, from {newest.path}"
    else:
        why = "of another version" if any(each.of_another_version for each in found) else "damaged"
        resumes = f"never: all of them are {why}; start a new run" if found else "from the beginning"
    show("" if found else f"{run} has no checkpoint yet", [("resumes", resumes)])
    offer(following)


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
        state = "verified" if each.damage is None else f"damaged: {each.damage}"
        state = each.damage or state if each.of_another_version else state
        of_manifest = [UNKNOWN] * 4
        if about is not None:
            of_manifest = [f"{about.epoch + 1:,}", _age(about.saved_at, now), byte_size(about.bytes), about.reason]
            state = f"best, {state}" if about.best else state
        words = [shortened(printable(text), _LONGEST_WORDS) for text in (of_manifest.pop(), state)]
        rows.append([mark + _step(each).rjust(longest), *of_manifest, *words])
    return table([f"  {'step'.rjust(longest)}", "epoch", "age", "size", "why", "state"], rows, words=(4, 5))


def _step(each: Listed) -> str:
    return f"{each.step:,}" + (f" ({each.attempt})" if each.attempt > 1 else "")


def _age(saved_at: float, now: float) -> str:
    # By a clock that was wrong, or another machine's, it may lie ahead.
    return UNKNOWN if saved_at > now + 1 else time_left(max(now - saved_at, 0.0))


def _answer(run: Path, found: Sequence[Listed], newest: Listed | None, now: float, following: str) -> dict[str, Any]:
    return {
        "run": str(run),
        "resumes_from": str(newest.path) if newest is not None else None,
        "next": following,
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
        "path": str(each.path),
        "step": each.step,
        "attempt": each.attempt,
        "verified": each.damage is None,
        "damage": each.damage,
        **of_manifest,
        "age_seconds": None if about is None else now - about.saved_at,
    }
