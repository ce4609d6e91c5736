"""What a run has kept: `hasten checkpoints` and `hasten export`."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import app, ending_in_one_block, offer
from hasten.cli.resume_line import resuming
from hasten.cli.run_of_job import job_of
from hasten.errors import StorageFailed

if TYPE_CHECKING:
    from hasten.checkpoint.listing import Listed

_EARLIEST = 1_735_689_600.0  # 2025, in seconds since 1970: hasten is no older
_LONGEST_WORDS = 100

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, such as runs/job-1.")]


@app.command()
@ending_in_one_block
def checkpoints(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """List the checkpoints of a run. Every byte of them is read, so that a damaged one is known.

    \b
    Examples:
      hasten checkpoints runs/job-1
    """
    from hasten.checkpoint.listing import listed
    from hasten.report.terminal.progress_bar import Waiting

    waiting = Waiting("verifying")
    try:
        found = listed(run, waiting)
    finally:
        waiting.close()
    newest = next((each for each in found if each.damage is None), None)
    following = _next(run, found, newest)
    now = time.time()
    if as_json:
        typer.echo(json.dumps(_answer(run, found, newest, now, following)))
    else:
        _show(run, found, newest, now, following)


@app.command()
@ending_in_one_block
def export(
    run: RunPath,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The new file: NAME.safetensors.")],
    step: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Of this checkpoint; of the newest whole one if not given.")
    ] = None,
) -> None:
    """Write the weights of a run as one safetensors file. It needs nothing of the job's code.

    They are those that the run would keep if it ended at that checkpoint, under the names of the job's own model. A
    file that is there already is never replaced.

    \b
    Examples:
      hasten export runs/job-1 -o model.safetensors
      hasten export runs/job-1 -o early.safetensors --step 500
    """
    from hasten.facts.formatting import byte_size
    from hasten.report.terminal.output import show
    from hasten.training.weights.export import export_weights

    done = export_weights(run, output, step)
    kept = (
        "" if done.kept_step in (None, done.step) else f"; they are those of step {done.kept_step:,}, the best so far"
    )
    show(
        f"Exported {output.name}",
        [
            *(("note", text) for text in done.damaged),
            ("step", f"{done.step:,}, from {done.checkpoint}{kept}"),
            ("weights", f"{done.tensors:,} tensors, {byte_size(done.bytes)}, in {output}"),
            ("load", f"model.load_state_dict(hasten.read_weights({json.dumps(str(output))}))"),
        ],
    )
    offer(shlex.join(["hasten", "train", job_of(run) or "JOB", "--weights", str(output)]))


def _show(run: Path, found: Sequence[Listed], newest: Listed | None, now: float, following: str) -> None:
    from hasten.report.display import printable
    from hasten.report.terminal.output import show

    if found:
        typer.echo(printable(f"Checkpoints of {run}") + "\n")
        typer.echo("\n".join(f"  {line}" for line in _lines(found, newest, now)))
    if newest is not None:
        goes_on = f"at step {newest.step:,}, in {newest.path}"
    else:
        goes_on = "nowhere, as none of them is whole; it can only begin anew" if found else "at its beginning"
    show("" if found else f"{run} has no checkpoint yet", [*_notes(found, now), ("resumes", goes_on)])
    offer(following)


def _next(run: Path, found: Sequence[Listed], newest: Listed | None) -> str:
    """What goes on with the run, as it was asked for; or begins it anew, in another folder, where nothing can."""
    job = job_of(run) or "JOB"
    if newest is not None or not found:
        return resuming(job, run)
    return shlex.join(["hasten", "train", job, *_options(run)])


def _options(run: Path) -> list[str]:
    from hasten.training.run_folder.run_request import asked_in

    try:
        asked = asked_in(run)
    except StorageFailed:
        return []
    return [] if asked is None else [word for pair in asked.options.items() for word in pair if word]


def _lines(found: Sequence[Listed], newest: Listed | None, now: float) -> list[str]:
    """A table: numbers to the right, words to the left."""
    from rich.cells import cell_len

    from hasten.facts.formatting import shortened
    from hasten.report.display import UNKNOWN, printable, table
    from hasten.report.page import words

    numbers, texts = list[list[str]](), [("why", "state")]
    longest = max(len(_step(each)) for each in found)
    for each in found:
        about = each.manifest
        mark, step = "→ " if each is newest else "  ", _step(each).rjust(longest)
        state = f"damaged: {each.damage}" if each.damage is not None else "verified"
        if about is None:
            numbers.append([mark + step, *[UNKNOWN] * 3])
            texts.append((UNKNOWN, state))
            continue
        numbers.append([mark + step, words.whole(about.epoch), _age(about.saved_at, now), words.size(about.bytes)])
        texts.append((about.reason, f"best, {state}" if about.best else state))
    shown = [tuple(shortened(printable(text), _LONGEST_WORDS) for text in row) for row in texts]
    width = max(cell_len(why) for why, _ in shown)
    shown.insert(1, ("─" * width, "─" * len("state")))
    left = table([f"  {'step'.rjust(longest)}", "epoch", "age", "size"], numbers)
    return [
        f"{line}  {why}{' ' * (width - cell_len(why))}  {state}" for line, (why, state) in zip(left, shown, strict=True)
    ]


def _step(each: Listed) -> str:
    return f"{each.step:,}" + (f" ({each.attempt})" if each.attempt > 1 else "")


def _age(saved_at: float, now: float) -> str:
    from hasten.report.display import UNKNOWN, time_left

    if not _is_possible(saved_at):
        return UNKNOWN
    return time_left(max(now - saved_at, 0.0)) if saved_at <= now + 1 else "in the future"


def _is_possible(saved_at: float) -> bool:
    return math.isfinite(saved_at) and _EARLIEST < saved_at < 1e11


def _notes(found: Sequence[Listed], now: float) -> list[tuple[str, str]]:
    """Where the clocks that wrote the times cannot have been right, an age is no age."""
    times = [each.manifest.saved_at for each in found if each.manifest is not None]
    odd = list[str]()
    if not all(map(_is_possible, times)):
        odd.append("a clock was not set when one was saved")
    if any(_is_possible(each) and each > now + 1 for each in times):
        odd.append("one was saved at a time that is still to come by this clock")
    if any(newer < older for newer, older in pairwise(times)):
        odd.append("a later step has an earlier time, so a clock was set back")
    return [("note", f"ages may be wrong: {'; '.join(odd)}")] if odd else []


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
    saved_at = about.saved_at if about is not None and math.isfinite(about.saved_at) else None
    return {
        "path": str(each.path),
        "step": each.step,
        "attempt": each.attempt,
        "verified": each.damage is None,
        "damage": each.damage,
        "epoch": about.epoch if about is not None else None,
        "saved_at": saved_at,
        "age_seconds": None if saved_at is None else now - saved_at,
        "bytes": about.bytes if about is not None else None,
        "reason": about.reason if about is not None else None,
        "best": about.best if about is not None else None,
    }
