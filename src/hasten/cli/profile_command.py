"""A job before it is trained to its end: `hasten schedule` and `hasten profile`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import (
    AsJson,
    JobName,
    PlanPath,
    Quiet,
    SetOption,
    app,
    command,
    ends_with_exit_code,
    introduced,
    job_options,
    read,
)
from hasten.errors import Misconfigured
from hasten.facts.formatting import as_json as json_value
from hasten.facts.formatting import byte_size
from hasten.report.display import count, decimal, duration, listed, many, per_second, percent, scaled, table
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput
from hasten.report.terminal.output import Lines
from hasten.report.terminal.profile_text import work
from hasten.report.terminal.text_chart import chart

if TYPE_CHECKING:
    from hasten.facts.job import Job
    from hasten.facts.plan import Plan
    from hasten.training.schedule.schedule_trace import Trace
    from hasten.tuning.job_profile import JobProfile

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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Draw the learning rate of the planned run. Or find one, with --range-test.

    \b
    Examples:
      hasten schedule digits.py:job --png schedule.png
      hasten schedule digits.py:job --range-test
      hasten schedule digits.py:job --json
    """
    options, planned = job_options(context, settings), read(plan)
    doing = "Testing learning rates of" if range_test else "Tracing the learning rate of"
    with CommandOutput(quiet=quiet, as_json=as_json) as output:
        loaded = introduced(output, doing, job, options)
        if range_test:
            _test_rates(job, loaded, planned, png, output)
        else:
            _trace(job, loaded, planned, png, command("train", job, plan, options), output)


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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show the time, the FLOPs and the memory of a step. It trains a few dozen steps and discards them.

    \b
    Examples:
      hasten profile digits.py:job --plan plan.toml
      hasten profile digits.py:job --microbatch
      hasten profile digits.py:job --json
    """
    options, planned = job_options(context, settings), read(plan)
    doing = "Timing microbatches of" if microbatch else "Profiling"
    with CommandOutput(quiet=quiet, as_json=as_json) as output:
        loaded = introduced(output, doing, job, options)
        (_time_microbatches if microbatch else _profile)(job, loaded, planned, output)


def _trace(name: str, job: Job, plan: Plan | None, png: Path | None, following: str, output: CommandOutput) -> None:
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
        output.table([f"learning rate of {trace.optimizer}, over the steps:", *chart(trace.rates)])
    facts: Lines = [("note", trace.note) for trace in traces if trace.note]
    if png is not None:
        from hasten.report.plots import draw_schedule

        _write_image(png, draw_schedule(traces[0].steps, traces[0].rates, traces[0].momenta, note=traces[0].note))
        facts.append(("image", str(png)))
    sentence = Sentence(
        headline=f"Learning rate {listed([_span(trace) for trace in traces])} over {many(total, 'step')}",
        small_print="; ".join(["first → highest → last", *(_momentum(each) for each in traces if any(each.momenta))]),
    )
    output.result(sentence, facts, following, {"job": name, "total_steps": total, "traces": traces})


def _span(trace: Trace) -> str:
    return f"{decimal(trace.rates[0])} → {decimal(max(trace.rates))} → {decimal(trace.rates[-1])}"


def _momentum(trace: Trace) -> str:
    momenta = [each for each in trace.momenta if each is not None]
    return f"momentum {decimal(min(momenta))} to {decimal(max(momenta))}"


def _test_rates(name: str, job: Job, plan: Plan | None, png: Path | None, output: CommandOutput) -> None:
    from hasten.tuning.range_test import range_test

    with closing(output.progress("training")) as waiting:
        found = range_test(job, plan, watch=waiting)
    rate, reason = found.suggestion.rate, found.suggestion.reason
    output.table(["loss, over the logarithm of the rate:", *chart(found.losses)])
    facts: Lines = []
    if png is not None:
        from hasten.report.plots import draw_range_test

        _write_image(png, draw_range_test(found.rates, found.losses, rate))
        facts.append(("image", str(png)))
    tried = f"{len(found.rates)} steps, rates from {decimal(found.rates[0])} to {decimal(found.rates[-1])}"
    sentence = Sentence(
        headline="No learning rate suggested" if rate is None else f"Suggested learning rate: {decimal(rate)}",
        small_print=f"{reason}; tried {tried}",
    )
    answer = {"job": name, "rates": found.rates, "losses": found.losses, "suggestion": found.suggestion}
    output.result(sentence, facts, "hasten explain learning_rate", answer)


def _profile(name: str, job: Job, plan: Plan | None, output: CommandOutput) -> None:
    from hasten.tuning.job_profile import profile_job

    with closing(output.progress("profiling")) as waiting:
        found = profile_job(job, plan, name=name, watch=waiting)
    output.facts("", _profile_lines(found))
    times, memory = found.times, found.memory
    peak = max(memory.peak_bytes, 1)
    kinds = sorted(((size, kind.value) for kind, size in memory.by_kind.items() if size), reverse=True)
    layers = [(size, name or "outside any module") for name, size in memory.by_module.items()][:LARGEST_MODULES]
    for header, rows in (("at the peak", kinds), ("activations of", layers)):
        output.table(
            table([header, "memory", "share"], [[what, byte_size(size), percent(size / peak)] for size, what in rows])
        )
    sentence = Sentence(
        headline=f"{duration(times.median_seconds)} a step, {per_second(times.samples_per_second)} samples/s",
        small_print=f"the median of {many(times.steps, 'step')} with their data; half took {duration(times.low)} to "
        f"{duration(times.high)}, {percent(times.data_wait_share)} of the time waiting for data",
    )
    output.result(sentence, [], "hasten techniques", {"job": name, **json_value(found)})


def _profile_lines(found: JobProfile) -> Lines:
    rate = found.rate
    spread = f"{scaled(rate.slowest, 'FLOP/s')} to {scaled(rate.fastest, 'FLOP/s')}, {rate.stretches} times"
    matrix = f"{scaled(rate.flops_per_second, 'FLOP/s')} ({spread}) of a {rate.dtype} matrix product here"
    lines = [
        ("device", found.device),
        ("model", f"{count(found.parameters)} parameters"),
        ("work", work(found.flops.flops_per_sample, found.flops.failed)),
    ]
    if found.utilization is not None:
        lines.append(("reached", f"{percent(found.utilization)} of the {matrix}"))
    if found.flops.uncounted:
        lines.append(("note", f"not counted, because no formula is known: {', '.join(found.flops.uncounted)}"))
    lines.append(("memory", f"{byte_size(found.memory.peak_bytes)} of tensors at the peak of a step, at least"))
    return [*lines, ("fragments", fragments(found.fragmentation))]


def fragments(share: float | None) -> str:
    """The line of a profile about fragmentation. share: 0 to 1; None where torch has no caching allocator."""
    if share is None:
        return "not measured: torch caches no memory on a CPU"
    advice = "" if share < MANY_FRAGMENTS else " (hasten explain allocator)"
    return f"{percent(share)} of the memory that torch has reserved is free, between blocks in use{advice}"


def _time_microbatches(name: str, job: Job, plan: Plan | None, output: CommandOutput) -> None:
    """Search, and show the seconds of each size."""
    from hasten.tuning.microbatch_search import microbatch_trials

    with closing(output.progress("timing")) as waiting:
        trials = microbatch_trials(job, plan, watch=waiting)
    fastest = min(trials, key=lambda trial: trial.median_seconds)
    rows = [
        [f"{trial.size}", *map(duration, (trial.median_seconds, min(took), max(took))), str(len(took))]
        if (took := trial.step_seconds)
        else [f"{trial.size}", "no room", "", "", ""]
        for trial in trials
    ]
    output.table(table(["samples at a time", "median step", "fastest", "slowest", "steps"], rows))
    took = fastest.step_seconds
    sentence = Sentence(
        headline=f"Fastest microbatch: {fastest.size} of {trials[0].size} samples, "
        f"{duration(fastest.median_seconds)} a step",
        small_print=f"the median of {many(len(took), 'step')}, {duration(min(took))} to {duration(max(took))}; a step "
        f"updates once with all {trials[0].size} samples, whatever the microbatch",
    )
    output.result(sentence, [], "hasten explain microbatch", {"job": name, "size": fastest.size, "trials": trials})


def _write_image(path: Path, figure: Any) -> None:
    from hasten.checkpoint.files import write_atomically
    from hasten.report.plots import as_png

    write_atomically(path, as_png(figure))
