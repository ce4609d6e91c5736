"""A job before it is trained to its end: `hasten schedule` and `hasten profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import (
    JobName,
    PlanPath,
    SetOption,
    app,
    command,
    echo_indented,
    ends_with_exit_code,
    job_options,
    load,
    offer,
    read,
)
from hasten.errors import Misconfigured
from hasten.facts.formatting import byte_size
from hasten.report.display import count, decimal, duration, per_second, percent, scaled, table
from hasten.report.terminal.output import show
from hasten.report.terminal.profile_text import work
from hasten.report.terminal.text_chart import chart

if TYPE_CHECKING:
    from hasten.facts.job import Job
    from hasten.facts.plan import Plan
    from hasten.tuning.job_profile import JobProfile
    from hasten.tuning.microbatch_search import MicrobatchTrial

LARGEST_MODULES = 5  # that a profile lists
MOST_STEPS = 2_000_000  # that a schedule is drawn for: some seconds of Python
MANY_FRAGMENTS = 0.1  # share of the allocated memory, from which a profile names the remedy


@app.command()
@ends_with_exit_code
def schedule(
    context: typer.Context,
    job: JobName,
    plan: PlanPath = None,
    settings: SetOption = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an image of the curve.")] = None,
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
    options = job_options(context, settings)
    loaded, planned = load(job, options), read(plan)
    if range_test:
        _show_range_test(loaded, planned, png)
    else:
        _show_schedule(job, loaded, planned, png)
    offer("hasten explain learning_rate" if range_test else command("train", job, plan, options))


@app.command()
@ends_with_exit_code
def profile(
    context: typer.Context,
    job: JobName,
    plan: PlanPath = None,
    settings: SetOption = None,
    microbatch: Annotated[
        bool, typer.Option("--microbatch", help="Find the fastest microbatch that fits instead.")
    ] = False,
) -> None:
    """Show where time and memory go. It trains a few dozen steps and discards them.

    \b
    Examples:
      hasten profile digits.py:job --plan plan.toml
      hasten profile digits.py:job --microbatch
    """
    loaded, planned = load(job, job_options(context, settings)), read(plan)
    if microbatch:
        _show_microbatches(loaded, planned)
    else:
        from hasten.tuning.job_profile import profile_job

        _show_profile(job, profile_job(loaded, planned, name=job))
    offer("hasten explain microbatch" if microbatch else "hasten techniques")


def _show_schedule(name: str, job: Job, plan: Plan | None, png: Path | None) -> None:
    from hasten.entry import prepare
    from hasten.training.schedule.schedule_trace import trace_schedule

    with prepare(job, plan, name=name) as run:
        total, per_epoch, setup = run.total_steps, run.loader.steps_per_epoch, run.setup
    assert total is not None  # data without a length needs max_steps, or was refused
    if total > MOST_STEPS:
        what = f"has {total:,} steps, and a schedule is drawn for {MOST_STEPS:,} at most"
        raise Misconfigured(what, where=name, fix="draw it for a job with a smaller max_steps, or fewer epochs")
    traces = trace_schedule(
        job, total_steps=total, steps_per_epoch=per_epoch, optimizer=setup.optimizer, schedule=setup.schedule
    )
    for trace in traces:
        momenta = [momentum for momentum in trace.momenta if momentum is not None]
        span = f"{decimal(trace.rates[0])} → {decimal(max(trace.rates))} → {decimal(trace.rates[-1])}"
        lines = [("rate", f"{span} (first, highest, last)"), ("steps", f"{total:,}")]
        if momenta:
            lines.append(("momentum", f"{decimal(min(momenta))} to {decimal(max(momenta))}"))
        if trace.note:
            lines.append(("note", trace.note))
        show(f"{name}: {trace.optimizer}", lines)
        echo_indented(chart(trace.rates))
    if png is not None:
        from hasten.report.plots import draw_schedule

        _write_image(png, draw_schedule(traces[0].steps, traces[0].rates, traces[0].momenta, note=traces[0].note))


def _show_range_test(job: Job, plan: Plan | None, png: Path | None) -> None:
    from hasten.tuning.range_test import range_test

    found = range_test(job, plan)
    rate, reason = found.suggestion.rate, found.suggestion.reason
    show(
        "Range test",
        [
            ("tried", f"{len(found.rates)} steps, rates from {decimal(found.rates[0])} to {decimal(found.rates[-1])}"),
            ("suggests", f"no rate: {reason}" if rate is None else f"{decimal(rate)}: {reason}"),
        ],
    )
    typer.echo("\nloss, over the logarithm of the rate:", nl=False)
    echo_indented(chart(found.losses))
    if png is not None:
        from hasten.report.plots import draw_range_test

        _write_image(png, draw_range_test(found.rates, found.losses, rate))


def _show_profile(name: str, found: JobProfile) -> None:
    times, memory, rate = found.times, found.memory, found.rate
    half, wait = f"half took {duration(times.low)} to {duration(times.high)}", percent(times.data_wait_share)
    spread = f"{scaled(rate.slowest, 'FLOP/s')} to {scaled(rate.fastest, 'FLOP/s')}, {rate.stretches} times"
    matrix = f"{scaled(rate.flops_per_second, 'FLOP/s')} ({spread}) of a {rate.dtype} matrix product here"
    lines = [
        ("model", f"{count(found.parameters)} parameters"),
        ("step", f"{duration(times.median_seconds)}: the median of {times.steps} with their data; {half}"),
        ("speed", f"{per_second(times.samples_per_second)} samples/s, {wait} of the time waiting for data"),
        ("work", work(found.flops.flops_per_sample, found.flops.failed)),
    ]
    if found.utilization is not None:
        lines.append(("reached", f"{percent(found.utilization)} of the {matrix}"))
    if found.flops.uncounted:
        lines.append(("note", f"not counted, because no formula is known: {', '.join(found.flops.uncounted)}"))
    lines.append(("memory", f"{byte_size(memory.peak_bytes)} of tensors at the peak of a step, at least"))
    lines.append(("fragments", fragments(found.fragmentation)))
    show(f"{name} on {found.device}", lines)
    peak = max(memory.peak_bytes, 1)
    kinds = sorted(((size, kind.value) for kind, size in memory.by_kind.items() if size), reverse=True)
    layers = [(size, name or "outside any module") for name, size in memory.by_module.items()][:LARGEST_MODULES]
    for header, rows in (("at the peak", kinds), ("activations of", layers)):
        echo_indented(
            table([header, "memory", "share"], [[what, byte_size(size), percent(size / peak)] for size, what in rows])
        )


def fragments(share: float | None) -> str:
    """The line of a profile about fragmentation. share: 0 to 1; None where torch has no caching allocator."""
    if share is None:
        return "not measured: torch caches no memory on a CPU"
    advice = "" if share < MANY_FRAGMENTS else " (hasten explain allocator)"
    return f"{percent(share)} of the memory that torch has reserved is free, between blocks in use{advice}"


def _show_microbatches(job: Job, plan: Plan | None) -> None:
    """Search, and show every trial and the seconds of each size."""
    from hasten.tuning.microbatch_search import microbatch_trials

    def report(trial: MicrobatchTrial) -> None:
        took = f"{duration(trial.median_seconds)} a step" if trial.step_seconds else "does not fit into memory"
        typer.echo(f"  tried {trial.size} samples at a time: {took}")

    typer.echo("")
    trials = microbatch_trials(job, plan, watch=report)
    fastest = min(trials, key=lambda trial: trial.median_seconds)
    rows = [
        [f"{trial.size}", duration(trial.median_seconds), duration(min(took)), duration(max(took)), str(len(took))]
        for trial in trials
        if (took := trial.step_seconds)
    ]
    show("Microbatch", [("batch", f"{trials[0].size}, in one optimizer step whatever the size")])
    echo_indented(table(["samples at a time", "median step", "fastest", "slowest", "steps"], rows))
    show("", [("fastest", f"{fastest.size} samples at a time")])


def _write_image(path: Path, figure: Any) -> None:
    from hasten.checkpoint.files import write_atomically
    from hasten.report.plots import as_png

    write_atomically(path, as_png(figure))
    typer.echo(f"\n  written to {path}")
