"""The page of a run: its result and its course."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from statistics import median

from hasten.facts.events import Trained
from hasten.facts.formatting import byte_size
from hasten.report.display import decimal, duration, many, per_second, percent
from hasten.report.page.charts import Line, chart
from hasten.report.page.page_model import Cell, Chart, Column, Page, Pair, Section, filled_table
from hasten.report.page.plan_evidence import Evidence
from hasten.report.page.plan_page import plan_section, small_print
from hasten.report.page.render import html_of
from hasten.report.page.run_log import RunLog
from hasten.report.sentence import Sentence, run_sentence

MOST_EVALUATIONS = 24  # rows of the table; the chart and the file have them all
COURSE: Sequence[tuple[str, str, Callable[[Trained], float | None]]] = (
    ("learning rate", "rate", lambda event: event.learning_rate),
    ("momentum (of Adam: the first beta)", "momentum", lambda event: event.momentum),
    ("throughput (samples per second)", "planned", lambda event: event.samples_per_second),
    ("waiting for data (% of the time)", "planned", lambda event: 100 * event.data_wait_share),
    ("peak memory so far (MiB)", "planned", lambda event: event.memory_bytes / 2**20),
)
"""Name with its unit, class of the line, and value."""


def page_of(log: RunLog) -> str:
    """The whole page as HTML, from what a run left behind."""
    of_training = [_losses, _evaluations, _course] if log.trained else [_evaluations]
    sections = [
        _plan(log),
        *(section(log) for section in of_training),
    ]
    sentence = sentence_of(log)
    return html_of(
        Page(
            subject=log.job or log.folder,
            headline=sentence.headline,
            small_print=[*small_print(sentence), *_circumstances(log)],
            figures=_figures(log),
            notes=_warnings(log),
            command=next_command(log),
            sections=[section for section in sections if section is not None],
        )
    )


def sentence_of(log: RunLog) -> Sentence:
    """What the page says first."""
    if log.finished is not None:
        return run_sentence(log.finished)
    if not log.trained:
        return Sentence(headline="The log of this run has no step")
    last = log.trained[-1]
    total = log.started.total_steps if log.started is not None else None
    of = f" of {total:,}" if total is not None else ""
    return Sentence(
        headline=f"The log of this run ends at step {last.step:,}{of}, after {duration(last.seconds)}",
        small_print="the run is not finished, or it was killed",
    )


def next_command(log: RunLog) -> str:
    return shlex.join(["hasten", "tune", log.job or "JOB", *log.options])


def _figures(log: RunLog) -> list[Pair]:
    if not log.trained:
        return []
    return [
        ("samples per second", _median([event.samples_per_second for event in log.trained], per_second)),
        ("time spent waiting for data", _median([event.data_wait_share for event in log.trained], percent)),
        ("peak memory", byte_size(max(event.memory_bytes for event in log.trained))),
    ]


def _warnings(log: RunLog) -> list[str]:
    found, end = list[str](), log.finished
    skipped = (end or log.trained[-1]).skipped_updates if end or log.trained else 0
    if skipped:
        found.append(f"{many(skipped, 'update')} had a gradient that was not finite, and {_were(skipped)} skipped.")
    if log.unread:
        found.append(f"{many(log.unread, 'line')} of the log could not be read, and {_were(log.unread)} skipped.")
    return [*found, *log.noticed]


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _median(values: Sequence[float], show: Callable[[float], str]) -> Cell:
    return Cell(text=show(median(values)), small=f"median of {many(len(values), 'log line')}")


def _circumstances(log: RunLog) -> list[str]:
    found = [f"On {log.started.machine}."] if log.started is not None else []
    found += [] if log.plan.choices else ["Without a plan: this run is the baseline."]
    return [" ".join(found)] if found else []


def _plan(log: RunLog) -> Section | None:
    return plan_section(Evidence(plan=log.plan, path=log.folder, budgets={}))


def _losses(log: RunLog) -> Section:
    lines = [
        Line(label="training", kind="plain", points=[(event.step, event.loss) for event in log.trained]),
        Line(label="evaluation", kind="planned", points=_evaluated(log, "loss")),
    ]
    return Section(
        title="Loss",
        lead="Each value of the training loss is the mean of the steps since the value before it.",
        notes=list(filter(None, map(_gaps, lines))),
        charts=chart("Loss of the run", lines, "loss"),
    )


def _gaps(line: Line) -> str:
    broken = sum(not math.isfinite(value) for _, value in line.points)
    leaves = "is not finite and leaves a gap" if broken == 1 else "are not finite and leave gaps"
    return f"{many(broken, 'value')} of the {line.label} loss {leaves}." if broken else ""


def _evaluated(log: RunLog, name: str) -> list[tuple[float, float]]:
    return [(event.step, event.results[name]) for event in log.evaluated if name in event.results]


def _evaluations(log: RunLog) -> Section | None:
    if not log.evaluated:
        return None
    names = list(dict.fromkeys(name for event in log.evaluated for name in event.results))
    shown = log.evaluated[-MOST_EVALUATIONS:]
    rows = [
        [
            f"{event.step:,}",
            *(decimal(event.results[name]) if name in event.results else "" for name in names),
            duration(event.seconds),
            "yes" if event.best else "",
        ]
        for event in shown
    ]
    columns: list[Column] = [
        ("optimizer step", "name"),
        *((name, "number") for name in names),
        ("duration", "number"),
        ("best so far", ""),
    ]
    few = f": the last {len(shown)} of {len(log.evaluated):,}" if len(shown) < len(log.evaluated) else ""
    drawn = [
        chart(name, [Line(label=name, kind="planned", points=_evaluated(log, name))], name)
        for name in names
        if name != "loss"
    ]
    return Section(
        title="Evaluations",
        charts=[each for charts in drawn for each in charts],
        table=filled_table(f"Results of the evaluations{few}", columns, rows, "wide"),
    )


def _course(log: RunLog) -> Section:
    charts = list[Chart]()
    for name, kind, value_of in COURSE:
        points = [(event.step, value) for event in log.trained if (value := value_of(event)) is not None]
        charts += chart(name, [Line(label=name, kind=kind, points=points)], name)
    return Section(title="Learning rate, throughput and memory", charts=charts)
