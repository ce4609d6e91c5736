"""`hasten plan-mesh`: how a cluster could hold a job, on paper."""

from __future__ import annotations

import shlex
from contextlib import closing
from enum import StrEnum
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
from hasten.facts.formatting import read_bytes, read_rate
from hasten.facts.mesh import Cluster
from hasten.facts.plan import Plan, PlannedChoice
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.mesh_text import answer_of, cost_lines, illegal_rows, job_lines, mesh_rows, sentence_of
from hasten.report.terminal.output import Lines

if TYPE_CHECKING:
    from pathlib import Path

    from hasten.facts.mesh import Meshes
    from hasten.training.setup.job_options import JobOptions

PLAN = "plan.toml"  # where the entries belong if no plan was given


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


@app.command("plan-mesh")
@ends_with_exit_code
def plan_mesh(
    context: typer.Context,
    job: JobName,
    devices: Annotated[int, typer.Option(metavar="N", min=1, help="Devices in the whole cluster.")],
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory of one device: 80GB, 80GiB.")],
    bandwidth: Annotated[str, typer.Option(metavar="SIZE", help="Bytes that one device sends per second: 50GB.")],
    per_machine: Annotated[int, typer.Option(metavar="N", min=1, help="Devices in one machine.")] = 8,
    microbatch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Samples in one pass of a device; default: the best.")
    ] = None,
    flops: Annotated[str, typer.Option(metavar="RATE", help="FLOPs that one device reaches per second.")] = "100T",
    plan: PlanPath = None,
    settings: SetOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every mesh, and why some are illegal.")] = False,
    form: Annotated[Format, typer.Option("--format", help="Format of the answer.")] = Format.TEXT,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Estimate the memory and traffic of a job on a cluster. For each mesh of data × tensor × pipeline.

    It trains nothing. It reads the model as shapes, so the model may be larger than this machine.

    \b
    Examples:
      hasten plan-mesh text.py:job --devices 64 --memory 80GB --bandwidth 50GB
      hasten plan-mesh text.py:job --devices 8 --memory 24GiB --bandwidth 12GB --all
      hasten plan-mesh text.py:job --devices 8 --memory 24GiB --bandwidth 12GB --json
    """
    options = job_options(context, settings)
    sizes = read_bytes(memory, "--memory"), read_bytes(bandwidth, "--bandwidth")
    rate = read_rate(flops, "--flops")
    cluster = Cluster(
        devices=devices,
        memory_bytes=sizes[0],
        bytes_per_second=sizes[1],
        per_machine=per_machine,
        flops_per_second=rate,
    )
    planned = read(plan)
    from hasten.tuning.mesh.legal_meshes import check_cluster, planned_meshes
    from hasten.tuning.mesh.mesh_needs import OF_A_MESH, needs_of

    check_cluster(cluster)  # before the job is loaded
    chosen = [] if planned is None else [item.choice for item in planned.choices]
    beside = [each for each in chosen if each.technique not in OF_A_MESH]
    with CommandOutput(quiet=quiet, as_json=as_json or form is Format.JSON) as output:
        loaded = introduced(output, "Planning meshes of", job, options)
        with closing(output.progress("reading the model")) as waiting:
            needs = needs_of(loaded, planned, name=job, watch=waiting)
        found = planned_meshes(needs, cluster, microbatch, beside)
        _show(found, everything, output)
        replaced = [each.technique for each in chosen if each.technique in OF_A_MESH]
        following = _next(job, plan, found, options)
        output.result(sentence_of(found), _plan(found, plan, replaced), following, answer_of(found))


def _show(found: Meshes, everything: bool, output: CommandOutput) -> None:
    output.facts("", [("cluster", f"{found.cluster.devices:,} devices, estimated"), *job_lines(found)])
    output.table(mesh_rows(found, everything=everything))
    if found.illegal and (everything or not found.legal):
        output.table(illegal_rows(found))
    if lines := cost_lines(found):
        output.facts("", lines)


def _plan(found: Meshes, plan: Path | None, replaced: list[str]) -> Lines:
    """What the plan needs for the best mesh."""
    from hasten.facts.plan_file import plan_to_toml

    lines: Lines = []
    if replaced:
        what = f"the entries {', '.join(replaced)} of {plan} are ignored: the mesh replaces them"
        lines.append(("note", what))
    if not found.choices:
        needs_none = [("plan", "no entry is needed: a run uses replicas by default")]
        return [*lines, *(needs_none if found.best is not None else [])]
    whole = plan_to_toml(Plan(choices=tuple(PlannedChoice(choice=each) for each in found.choices)))
    _, entry, entries = whole.partition("\n[[choice]]\n")
    entries = [each for each in (entry + entries).splitlines() if each]
    return [*lines, ("plan", f"add these entries to {plan or PLAN}:"), *(("", each) for each in entries)]


def _next(job: str, plan: Path | None, found: Meshes, options: JobOptions) -> str:
    cluster = found.cluster
    if found.best is None:
        return f"hasten explain {'activation_checkpointing' if found.legal else 'tensor'}"
    given = ["--plan", str(plan or PLAN)] if plan is not None or found.choices else []
    here = min(cluster.devices, cluster.per_machine)
    if cluster.devices == here:
        return shlex.join(
            ["hasten", "train", job, *given, *(["--nproc", str(here)] if here > 1 else []), *options.words]
        )
    launcher = ["torchrun", "--nnodes", str(cluster.devices // here), "--nproc-per-node", str(here)]
    return shlex.join([*launcher, "-m", "hasten", "train", job, *given, *options.words])
