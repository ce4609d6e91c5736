"""Looking at a job without training it to its end: `hasten schedule` and `hasten profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.application import JobName, PlanPath, app, command, ending_in_one_block, load, offer, read


@app.command()
@ending_in_one_block
def schedule(
    job: JobName,
    plan: PlanPath = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a picture.")] = None,
    range_test: Annotated[
        bool, typer.Option("--range-test", help="Train briefly with a rising rate instead, and suggest one.")
    ] = False,
) -> None:
    """Draw the learning rate of the planned run. Or find one, with --range-test.

    \b
    Examples:
      hasten schedule digits.py:job --png schedule.png
      hasten schedule digits.py:job --range-test
    """
    loaded, planned = load(job), read(plan)
    from hasten.cli.answers import show_range_test, show_schedule

    if range_test:
        show_range_test(loaded, planned, png)
    else:
        show_schedule(job, loaded, planned, png)
    offer("hasten explain learning_rate" if range_test else command("train", job, plan))


@app.command()
@ending_in_one_block
def profile(
    job: JobName,
    plan: PlanPath = None,
    microbatch: Annotated[
        bool, typer.Option("--microbatch", help="Instead, find the fastest microbatch that fits.")
    ] = False,
) -> None:
    """Show where seconds and memory go. A few dozen steps are trained and thrown away.

    \b
    Examples:
      hasten profile digits.py:job --plan plan.toml
      hasten profile digits.py:job --microbatch
    """
    from hasten.cli.answers import show_microbatches, show_profile

    loaded, planned = load(job), read(plan)
    if microbatch:
        show_microbatches(loaded, planned)
    else:
        from hasten.tune.job_profile import profile_job

        show_profile(job, profile_job(loaded, planned, name=job))
    offer("hasten explain microbatch" if microbatch else "hasten techniques")
