"""`hasten evaluate`."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.application import (
    AsJson,
    JobName,
    PlanPath,
    Quiet,
    SetOption,
    app,
    ends_with_exit_code,
    introduced,
    job_options,
    read,
)
from hasten.errors import Misconfigured
from hasten.report.display import decimal, duration, listed, many
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput

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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a job with the weights of a file.

    It uses one device, and builds no optimizer. With --run, the numbers are those of the run's own evaluation.

    \b
    Examples:
      hasten evaluate digits.py:job --weights model.safetensors
      hasten evaluate digits.py:job --run runs/job-1
      hasten evaluate digits.py:job --run runs/job-1 --data train
      hasten evaluate digits.py:job --run runs/job-1 --json
    """
    from hasten.training.evaluation.evaluate_weights import check_data, evaluate_weights
    from hasten.training.run_folder.folder_names import PLAN
    from hasten.training.setup.process_options import make_first_calls

    check_data(data, "--data")
    file, asked = _asked(weights, run)
    options = job_options(context, settings).over(asked.job_options)
    path, planned = file.absolute(), read(plan or (None if run is None else run / PLAN))
    make_first_calls()
    changes = asked.changes if device is None else {**asked.changes, "device": device}
    with CommandOutput(quiet=quiet, as_json=as_json) as output:
        loaded = introduced(output, "Evaluating", job, options, **changes)
        with closing(output.progress("evaluating")) as waiting:
            found = evaluate_weights(loaded, path, planned, data, batch_size, waiting)
        facts = [("weights", str(file)), *(("note", text) for text in found.notices)]
        following = shlex.join(["hasten", "train", job, "--weights", str(file), *options.words])
        answer = {"job": job, "weights": file, "data": data, "samples": found.samples, "device": str(found.device)}
        answer |= {**asdict(found.evaluation), "notices": found.notices}
        output.result(_sentence(data, found), facts, following, answer)


def _sentence(data: str, found: EvaluatedWeights) -> Sentence:
    evaluation = found.evaluation
    samples = "" if found.samples is None else f"{many(found.samples, 'sample')} of "
    return Sentence(
        headline=listed([f"{name} {decimal(value)}" for name, value in evaluation.results.items()]),
        small_print=f"on {samples}Job.{data}, in batches of {evaluation.batch_size}, "
        f"{duration(evaluation.seconds)} on {found.device}",
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
