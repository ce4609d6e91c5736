"""The page of a run: its result, its course, and where it ran."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any, cast

from hasten.facts.events import Evaluated
from hasten.facts.formatting import byte_size
from hasten.facts.trials import Rates
from hasten.report.display import decimal, duration, listed, many, named, per_second, percent
from hasten.report.page.charts import Band, band, chart, number
from hasten.report.page.curve_sections import QUARTILES, meaning, numbers, over_steps, quartiles, rate_section, unit_of
from hasten.report.page.page_model import Cell, Chart, Column, Page, Pair, Section, Table
from hasten.report.page.plan_page import claim_of
from hasten.report.page.render import html_of
from hasten.report.page.run_log import RunLog
from hasten.report.page.tried_choices import speedup_cell

MOST_EVALUATIONS = 24  # rows of the table; the file has them all


def page_of(log: RunLog) -> str:
    """The whole page as HTML, from what a run left behind."""
    of_training = [_losses, _evaluations, _rates, _pace, _memory] if log.trained else [_evaluations]
    sections = [
        _plan(log),
        *(section(log) for section in of_training),
        _where(log),
        Section(title="Next", command=next_command(log)),
    ]
    return html_of(
        Page(
            subject=log.job or log.folder,
            headline=sentence_of(log),
            leads=[f"On {log.started.machine}."] if log.started is not None else [],
            figures=_figures(log),
            notes=_warnings(log),
            sections=[section for section in sections if section is not None],
        )
    )


def sentence_of(log: RunLog) -> str:
    """What the page says first."""
    end = log.finished
    if end is not None:
        results = listed([f"{name} {decimal(value)}" for name, value in end.results.items()], most=4)
        return f"Trained {many(end.steps, 'step')} in {duration(end.seconds)}" + (f": {results}" if results else "")
    if not log.trained:
        return "The log of this run has no step"
    last = log.trained[-1]
    total = log.started.total_steps if log.started is not None else None
    of = f" of {total:,}" if total is not None else ""
    return f"The log of this run ends at step {last.step:,}{of}, after {duration(last.seconds)}"


def next_command(log: RunLog) -> str:
    return shlex.join(["hasten", "tune", log.job or "JOB"])


def _figures(log: RunLog) -> list[Pair]:
    if not log.trained:
        return []
    figures: list[Pair] = [
        ("samples a second", _median([event.samples_per_second for event in log.trained], per_second)),
        ("waiting for data", _median([event.data_wait_share for event in log.trained], percent)),
        ("most memory", byte_size(max(event.memory_bytes for event in log.trained))),
    ]
    if log.finished is not None and log.finished.results:
        figures.append(("weights saved from", f"step {log.finished.kept_step:,}"))
    return figures


def _warnings(log: RunLog) -> list[str]:
    found, end = list[str](), log.finished
    skipped = (end or log.trained[-1]).skipped_updates if end or log.trained else 0
    if skipped:
        found.append(f"{many(skipped, 'update')} had a gradient that was not finite, and {_were(skipped)} skipped.")
    if end is None:
        found.append("The log has no end: the run is not finished, or it was killed.")
    if log.unread:
        found.append(f"{many(log.unread, 'line')} of the log could not be read, and {_were(log.unread)} skipped.")
    return [*found, *log.noticed]


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _median(values: Sequence[float], show: Callable[[float], str]) -> Cell:
    return Cell(text=show(median(values)), small=f"the median of {len(values):,}")


def _plan(log: RunLog) -> Section:
    if not log.plan.choices:
        return Section(title="The plan", lead="None: the run is the baseline.")
    columns = [("technique", "name"), ("speed-up, as the plan states", "number"), ("claims to preserve", "")]
    rows: list[list[Cell | str]] = [
        [
            Cell(text=named(item.choice), kind="code"),
            speedup_cell(item.speedup) if item.speedup is not None else "not measured",
            claim_of(item),
        ]
        for item in log.plan.choices
    ]
    return Section(
        title="The plan",
        table=Table(caption="Techniques of the plan", columns=columns, rows=rows, kind="hidden-caption"),
    )


def _losses(log: RunLog) -> Section:
    bands = [band("training", "plain", [[event.loss for event in log.trained]], log.steps)]
    tested = [event for event in log.evaluated if "loss" in event.results]
    if tested:
        at = [event.step for event in tested]
        bands.append(band("evaluation", "planned", [[event.results["loss"] for event in tested]], at))
    described = "A value of the training loss is the mean over the steps since the one before."
    drawn = chart(
        bands,
        title="Loss of the run",
        description=described,
        y_label="loss",
        x_label=f"optimizer step. {described} {meaning(bands[0], '')}",
    )
    return Section(title="Loss", notes=_broken(bands), charts=drawn)


def _broken(bands: Sequence[Band]) -> list[str]:
    """What to say about values that are not finite."""
    return [
        f"{each.label}: {many(each.broken, 'value')} of the loss "
        + ("is not finite, and leaves a gap." if each.broken == 1 else "are not finite, and leave gaps.")
        for each in bands
        if each.broken
    ]


def _evaluations(log: RunLog) -> Section | None:
    if not log.evaluated:
        return None
    names = list(dict.fromkeys(name for event in log.evaluated for name in event.results))
    shown = _some(log.evaluated)
    rows = [
        [
            f"step {event.step:,}",
            *(decimal(event.results[name]) if name in event.results else "" for name in names),
            duration(event.seconds),
            "best so far" if event.best else "",
        ]
        for event in shown
    ]
    columns: list[Column] = [("at", "name"), *((name, "number") for name in names), ("took", "number"), ("", "")]
    few = f"; {len(shown)} of {len(log.evaluated):,} are shown" if len(shown) < len(log.evaluated) else ""
    charts = list[Chart]()
    for name in names:
        tested = [event for event in log.evaluated if name in event.results]
        if name != "loss" and len(tested) > 1:
            at = [event.step for event in tested]
            charts += over_steps(name, "planned", [event.results[name] for event in tested], at)
    return Section(
        title="Evaluations",
        charts=charts,
        table=Table(caption=f"Results of the evaluations{few}", columns=columns, rows=rows),
    )


def _rates(log: RunLog) -> Section | None:
    momenta = tuple(event.momentum for event in log.trained if event.momentum is not None)
    return rate_section(
        Rates(
            steps=log.steps,
            rates=tuple(event.learning_rate for event in log.trained),
            momenta=momenta if len(momenta) == len(log.trained) else (),
        )
    )


def _pace(log: RunLog) -> Section:
    shown = [
        ("samples a second", [event.samples_per_second for event in log.trained], per_second),
        ("waiting for data", [event.data_wait_share for event in log.trained], percent),
    ]
    charts = [over_steps(name, "planned", values, log.steps, show) for name, values, show in shown]
    return Section(
        title="Pace",
        lead="What the log says of every stretch of steps; the first one also pays for the start.",
        charts=[*chain(*charts)],
        table=numbers("Over the stretches of the log", QUARTILES, [quartiles(*each) for each in shown]),
    )


def _memory(log: RunLog) -> Section:
    values = [event.memory_bytes for event in log.trained]
    factor, unit = unit_of(values)
    return Section(
        title="Memory over time",
        lead="The most memory since the process began, so the line never falls. One that keeps rising is a leak.",
        charts=over_steps(f"most so far, {unit}", "planned", [value / factor for value in values], log.steps, number),
        table=numbers("Bytes", QUARTILES, [quartiles("most memory so far", values, lambda size: byte_size(int(size)))]),
    )


def _where(log: RunLog) -> Section:
    started, found = log.started, log.environment
    pairs: list[Pair] = [("folder", log.folder)]
    if started is not None:
        samples = "no known number of samples" if started.samples is None else many(started.samples, "sample")
        job = f"{many(started.parameters, 'parameter')}, {samples}, batches of {started.batch_size:,}"
        pairs += [("machine", started.machine), ("device", started.device), ("job", job)]
    packages = ", ".join(f"{name} {text}" for name, text in _table(found, "packages").items())
    pairs += [(name, str(found.get(name, ""))) for name in ("system", "python", "threads")]
    pairs += [("packages", packages), ("processor", str(_table(found, "machine").get("processor", "")))]
    return Section(title="Where this ran", pairs=pairs)


def _table(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", found[name]) if isinstance(found.get(name), dict) else {}


def _some(events: Sequence[Evaluated]) -> list[Evaluated]:
    """At most so many, evenly chosen, with the first, the last and the best of all."""
    if len(events) <= MOST_EVALUATIONS:
        return list(events)
    best = max((position for position, event in enumerate(events) if event.best), default=0)
    chosen = {position * (len(events) - 1) // (MOST_EVALUATIONS - 2) for position in range(MOST_EVALUATIONS - 1)}
    return [events[position] for position in sorted(chosen | {best})]
