"""`hasten evaluate`."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.application import (
    JobName,
    PlanPath,
    SetOption,
    app,
    ends_with_exit_code,
    job_options,
    load,
    offer,
    read,
)
from hasten.errors import Misconfigured
from hasten.report.display import decimal, duration, many
from hasten.report.terminal.output import show

if TYPE_CHECKING:
    from hasten.training.evaluation.evaluate_weights import EvaluatedWeights
    from hasten.training.run_folder.run_request import RunRequest


@app.command()
@ends_with_exit_code
def evaluate(
    context: typer.Context,
    job: JobName,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The weights in FILE: .safetensors, or .pt, .pth, .bin, .ckpt."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The kept weights of a run, with its plan, --set and --.")
    ] = None,
    plan: PlanPath = None,
    data: Annotated[str, typer.Option(metavar="FIELD", help="Data of the job: valid or train.")] = "valid",
    batch_size: Annotated[int | None, typer.Option(metavar="N", min=1, help="Samples in a batch.")] = None,
    device: Annotated[str | None, typer.Option(metavar="D", help="Replaces Job.device: cpu, cuda, cuda:1.")] = None,
    settings: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """Evaluate a job with the weights of a file.

    It uses one device, and builds no optimizer. With --run, the numbers are those of the run's own evaluation.

    \b
    Examples:
      hasten evaluate digits.py:job --weights model.safetensors
      hasten evaluate digits.py:job --run runs/job-1
      hasten evaluate digits.py:job --run runs/job-1 --data train
    """
    from hasten.training.evaluation.evaluate_weights import check_data, evaluate_weights
    from hasten.training.reporting.logs import as_json as finite
    from hasten.training.run_folder.folder_names import PLAN
    from hasten.training.setup.process_options import make_first_calls

    check_data(data, "--data")
    file, asked = _asked(weights, run)
    options = job_options(context, settings).over(asked.job_options)
    path, planned = file.absolute(), read(plan or (None if run is None else run / PLAN))
    make_first_calls()
    changes = asked.changes if device is None else {**asked.changes, "device": device}
    found = evaluate_weights(load(job, options, **changes), path, planned, data, batch_size)
    if as_json:
        answer = {"job": job, "weights": str(file), "data": data, "samples": found.samples, "device": str(found.device)}
        answer |= {**asdict(found.evaluation), "notices": found.notices}
        typer.echo(json.dumps(finite(answer)))
    else:
        _show(job, file, data, found)
        offer(shlex.join(["hasten", "train", job, "--weights", str(file), *options.words]))


def _show(job: str, file: Path, data: str, found: EvaluatedWeights) -> None:
    evaluation, samples = found.evaluation, "" if found.samples is None else f"{many(found.samples, 'sample')} "
    show(
        f"Evaluated {job} on {found.device}",
        [
            ("weights", str(file)),
            ("data", f"Job.{data}: {samples}in batches of {evaluation.batch_size}, {duration(evaluation.seconds)}"),
            *(("note", text) for text in found.notices),
            *((name, decimal(value)) for name, value in evaluation.results.items()),
        ],
    )


def _asked(weights: Path | None, run: Path | None) -> tuple[Path, RunRequest]:
    """The file of weights, and how the run was requested. What can be refused before the job is loaded is refused."""
    from hasten.checkpoint.listing import check_run
    from hasten.training.run_folder.folder_names import WEIGHTS
    from hasten.training.run_folder.run_directory import RunFolder
    from hasten.training.run_folder.run_request import RunRequest
    from hasten.training.weights.weights_file import check_file

    if (weights is None) == (run is None):
        what = "neither --weights nor --run is given" if run is None else "both --weights and --run are given"
        raise Misconfigured(what, fix="write one of them: --weights FILE, or --run RUN")
    if run is None:
        assert weights is not None
        check_file(weights)
        return weights, RunRequest()
    check_run(run)
    if not (run / WEIGHTS).exists():
        export = shlex.join(["hasten", "export", str(run), "-o", "NAME.safetensors"])
        what = "the run has not ended, so its weights are only in its checkpoints"
        raise Misconfigured(what, where=str(run), fix=f"{export}, then --weights NAME.safetensors")
    return run / WEIGHTS, RunFolder(run).asked()
