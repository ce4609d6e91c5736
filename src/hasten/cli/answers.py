"""What commands answer: schedule, range test, profile, microbatches and packing, each as a block of lines.

Everything heavy is imported where it is used, as in cli.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from hasten.data.shards.shard_writer import Packable
    from hasten.facts.job import Job
    from hasten.facts.plan import Plan
    from hasten.tune.job_profile import JobProfile
    from hasten.tune.microbatch_search import MicrobatchSearch, MicrobatchTrial

LARGEST_MODULES = 5  # that a profile lists
MANY_FRAGMENTS = 0.1  # share of the memory held, from which a profile names the remedy


def show_schedule(name: str, job: Job, plan: Plan | None, png: Path | None) -> None:
    from hasten.entry import prepare
    from hasten.report.display import decimal
    from hasten.report.terminal.output import show
    from hasten.report.terminal.text_chart import chart
    from hasten.training.schedule.schedule_trace import trace_schedule

    with prepare(job, plan, name=name) as run:
        total, per_epoch, setup = run.total_steps, run.loader.steps_per_epoch, run.setup
    assert total is not None  # a run whose length the data does not tell needs max_steps, or was refused
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
        typer.echo("\n" + "\n".join(f"  {line}" for line in chart(trace.rates)))
    if png is not None:
        from hasten.report.plots import draw_schedule

        _write_picture(png, draw_schedule(traces[0].steps, traces[0].rates, traces[0].momenta, note=traces[0].note))


def show_range_test(job: Job, plan: Plan | None, png: Path | None) -> None:
    from hasten.report.display import decimal
    from hasten.report.terminal.output import show
    from hasten.report.terminal.text_chart import chart
    from hasten.tune.range_test import range_test

    found = range_test(job, plan)
    rate, reason = found.suggestion.rate, found.suggestion.reason
    show(
        "Range test",
        [
            ("tried", f"{len(found.rates)} steps, rates from {decimal(found.rates[0])} to {decimal(found.rates[-1])}"),
            ("suggests", f"no rate: {reason}" if rate is None else f"{decimal(rate)}: {reason}"),
        ],
    )
    typer.echo("\nloss, over the logarithm of the rate:")
    typer.echo("\n".join(f"  {line}" for line in chart(found.losses)))
    if png is not None:
        from hasten.report.plots import draw_range_test

        _write_picture(png, draw_range_test(found.rates, found.losses, rate))


def show_profile(name: str, found: JobProfile) -> None:
    from hasten.facts.formatting import byte_size
    from hasten.report.display import count, duration, per_second, percent, scaled, table
    from hasten.report.terminal.output import show

    times, memory, rate = found.times, found.memory, found.rate
    half, wait = f"half took {duration(times.low)} to {duration(times.high)}", percent(times.data_wait_share)
    spread = f"{scaled(rate.slowest, 'FLOP/s')} to {scaled(rate.fastest, 'FLOP/s')}, {rate.stretches} times"
    matrix = f"{scaled(rate.flops_per_second, 'FLOP/s')} ({spread}) of a {rate.dtype} matrix product here"
    lines = [
        ("model", f"{count(found.parameters)} parameters"),
        ("step", f"{duration(times.median_seconds)}: the median of {times.steps} with their data; {half}"),
        ("speed", f"{per_second(times.samples_per_second)} samples/s, {wait} of the time waiting for data"),
        ("work", f"{scaled(found.flops.flops_per_sample, 'FLOP')} a sample, forward and backward"),
    ]
    if found.utilization is not None:
        lines.append(("reached", f"{percent(found.utilization)} of the {matrix}"))
    # torch marks an optimizer's update for its own profiler; that is no work.
    unknown = [operator for operator in found.flops.uncounted if not operator.startswith("profiler::")]
    if unknown:
        lines.append(("note", f"not counted, for want of a formula: {', '.join(unknown)}"))
    lines.append(("memory", f"{byte_size(memory.peak_bytes)} of tensors at the peak of a step, at least"))
    lines.append(("fragments", fragments(found.fragmentation)))
    show(f"{name} on {found.device}", lines)
    peak = max(memory.peak_bytes, 1)
    kinds = sorted(((size, kind.value) for kind, size in memory.by_kind.items() if size), reverse=True)
    layers = [(item.bytes, item.module or "outside any module") for item in memory.by_module[:LARGEST_MODULES]]
    for header, rows in (("at the peak", kinds), ("activations of", layers)):
        cells = [[what, byte_size(size), percent(size / peak)] for size, what in rows]
        typer.echo("\n" + "\n".join(f"  {line}" for line in table([header, "memory", "share"], cells)))


def fragments(share: float | None) -> str:
    """What a profile says of memory in pieces. share: 0 to 1; None where torch keeps no cache that could fragment."""
    from hasten.report.display import percent

    if share is None:
        return "nothing to measure: torch keeps no cache of memory on a processor"
    advice = "" if share < MANY_FRAGMENTS else " (hasten explain allocator)"
    return f"{percent(share)} of the memory that torch holds lies free between pieces in use{advice}"


def show_microbatches(job: Job, plan: Plan | None) -> MicrobatchSearch:
    """Search, telling every visit, and show what each size took."""
    from hasten.report.display import duration, table
    from hasten.report.terminal.output import show
    from hasten.tune.microbatch_search import fastest_microbatch

    def tell(trial: MicrobatchTrial) -> None:
        took = f"{duration(trial.median_seconds)} a step" if trial.fits else "does not fit into memory"
        typer.echo(f"  tried {trial.size} samples at a time: {took}")

    typer.echo("")
    found = fastest_microbatch(job, plan, watch=tell)
    rows = [
        [f"{trial.size}", duration(trial.median_seconds), duration(min(took)), duration(max(took)), str(len(took))]
        for trial in found.trials
        if (took := trial.step_seconds)
    ]
    header = ["samples at a time", "median step", "fastest", "slowest", "steps"]
    show("Microbatch", [("batch", f"{found.batch_size}, in one optimizer step whatever the size")])
    typer.echo("\n" + "\n".join(f"  {line}" for line in table(header, rows)))
    show("", [("fastest", f"{found.fastest.size} samples at a time")])
    return found


def show_packing(source: str, folder: Path, shard_bytes: int, seed: int | None) -> None:
    """Pack what the source names, telling the size first and how far it has come."""
    from hasten.data.shards.shard_writer import estimated, pack
    from hasten.facts.formatting import byte_size
    from hasten.report.display import count
    from hasten.report.terminal.output import show
    from hasten.report.terminal.progress_bar import Waiting

    data = _to_pack(source)
    guess = estimated(data, folder)
    room = f"{byte_size(guess.free_bytes)} are free"
    show(f"Packing {source}", [("estimate", f"{count(guess.samples)} samples, {byte_size(guess.bytes)}; {room}")])
    waiting = Waiting("packing")
    try:
        done = pack(data, folder, shard_bytes=shard_bytes, seed=seed, progress=waiting)
    finally:
        waiting.close()
    if data.classes is not None:
        use = f'hasten.ImageFolder("{folder}", hasten.RandomResizedCrop(224))'
    else:
        form = "" if done.form is None else f", form={done.form}".replace("'", '"')
        use = f'hasten.Shards("{folder}"{form})'
    show(
        f"Packed into {folder}",
        [
            ("samples", f"{count(done.samples)}, {'in their order' if seed is None else f'shuffled with seed {seed}'}"),
            ("shards", f"{count(done.shards)} of {byte_size(done.bytes)} in all, with an index and checksums"),
            ("use", f"train={use}"),
        ],
    )


def show_verified(folder: Path) -> None:
    """Read all shards again and compare them with what was packed."""
    from hasten.data.shards.shard_check import verify
    from hasten.facts.formatting import byte_size
    from hasten.report.display import count
    from hasten.report.terminal.output import show
    from hasten.report.terminal.progress_bar import Waiting

    waiting = Waiting("verifying")
    try:
        found = verify(folder, waiting)
    finally:
        waiting.close()
    whole = f"{count(found.samples)} samples in {count(found.shards)} shards, {byte_size(found.bytes)}"
    show(f"{folder}", [("whole", f"{whole}: every byte is the one that was packed")])


def _to_pack(source: str) -> Packable:
    from hasten.data.shards.shard_writer import PicturesInFolders, Samples
    from hasten.errors import Misconfigured
    from hasten.training.setup.load_job import load_returned

    if Path(source).is_dir():
        return PicturesInFolders(Path(source))
    if ":" not in source:
        fix = "name a folder of class folders, or a function that returns a data set: data.py:train_data"
        raise Misconfigured("there is no such folder", where=source, fix=fix)
    return Samples(load_returned(source))


def _write_picture(path: Path, figure: Any) -> None:
    from hasten.checkpoint.files import write_atomically
    from hasten.report.plots import as_png

    write_atomically(path, as_png(figure))
    typer.echo(f"\n  written to {path}")
