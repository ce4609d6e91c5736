"""The page of a run: what it came to, how it went there, and where."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, cast

from hasten.facts.events import Evaluated, Trained
from hasten.facts.plan import PlannedChoice
from hasten.report.display import decimal
from hasten.report.page import words
from hasten.report.page.drawing import Line, chart
from hasten.report.page.learned import broken, meaning, number, rate_charts, rate_table
from hasten.report.page.markup import Markup, Part, element
from hasten.report.page.run_log import RunLog
from hasten.report.page.shell import document, lead, notes, pairs_of, section, table, two_lines
from hasten.report.page.thinning import band

MOST_EVALUATIONS = 24  # rows of the table; the file has them all
MOST_METRICS = 6


def page_of_run(log: RunLog) -> str:
    """The whole page as HTML, from what a run left behind."""
    return document(
        f"{log.job or log.folder}: hasten report",
        _header(log),
        [_plan(log), _losses(log), _evaluations(log), _rates(log), _pace(log), _memory(log), _where(log), _next(log)],
    )


def sentence_of(log: RunLog) -> str:
    """What the page says first."""
    end = log.finished
    if end is not None:
        results = words.listed([f"{name} {decimal(value)}" for name, value in end.results.items()], most=4)
        return f"Trained {words.many(end.steps, 'step')} in {words.seconds(end.seconds)}" + (
            f": {results}" if results else ""
        )
    if not log.trained:
        return "The log of this run has no step"
    last = log.trained[-1]
    total = log.started.total_steps if log.started is not None else None
    of = f" of {words.whole(total)}" if total is not None else ""
    return f"The log of this run ends at step {words.whole(last.step)}{of}, after {words.seconds(last.seconds)}"


def next_command(log: RunLog) -> str:
    return shlex.join(["hasten", "tune", log.job or "JOB"])


def _header(log: RunLog) -> Markup:
    rates = [event.samples_per_second for event in log.trained]
    waits = [event.data_wait_share for event in log.trained]
    memory = [float(size) for event in log.trained if (size := words.known(event.memory_bytes)) is not None]
    kept = log.finished.kept_step if log.finished is not None and log.finished.results else None
    figures: list[tuple[str, Part]] = [
        ("samples a second", _spread(rates, words.pace)),
        ("waiting for data", _spread(waits, words.part)),
        ("most memory", words.size(max(memory)) if memory else None),
        ("weights kept from", f"step {words.whole(kept)}" if kept is not None else None),
    ]
    machine = log.started.machine if log.started is not None else ""
    return element(
        "header",
        element("p", element("span", "hasten report", class_="brand"), log.job or log.folder, class_="eyebrow"),
        element("h1", words.unbroken(sentence_of(log))),
        lead("On ", element("strong", machine), ".") if machine else None,
        element("div", pairs_of(figures), class_="figures"),
        notes(_warnings(log)),
    )


def _warnings(log: RunLog) -> list[str]:
    found = list[str]()
    skipped = (
        log.finished.skipped_updates
        if log.finished is not None
        else max((e.skipped_updates for e in log.trained), default=0)
    )
    if skipped:
        found.append(
            f"{words.many(skipped, 'update')} had a gradient that was not finite, and {_were(skipped)} skipped."
        )
    if log.finished is None:
        found.append("The log has no end: the run goes on, or it was killed.")
    if log.unread:
        found.append(
            f"{words.many(log.unread, 'line')} of the log could not be read, and {_were(log.unread)} left out."
        )
    return [*found, *log.noticed]


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _spread(values: Sequence[float], show: Callable[[float], str]) -> Part:
    """The median, and where the middle half lies; None without a value."""
    finite = sorted(value for value in values if words.known(value) is not None)
    if not finite:
        return None
    quarter = len(finite) // 4
    half = (
        f"half lay in {show(finite[quarter])} to {show(finite[-1 - quarter])}, of {len(finite):,}"
        if len(finite) > 3
        else None
    )
    return two_lines(show(median(finite)), half)


def _plan(log: RunLog) -> Markup:
    if not log.plan.choices:
        return section("The plan", lead("None: the job ran as it is."))
    rows = [[element("code", words.named(item.choice)), *_stated(item)] for item in log.plan.choices]
    columns = [("technique", "name"), ("speed-up, as the plan states", "number"), ("claims to preserve", "")]
    return section("The plan", table("Techniques of the plan", columns, rows, "heard"))


def _stated(item: PlannedChoice) -> list[Part]:
    found, claim = item.speedup, item.choice.preserves
    told = (
        two_lines(words.ratio(found), f"{words.interval(found)}, {words.pairs(found)}")
        if found is not None
        else "not measured"
    )
    return [told, "not stated" if claim is None else claim.words]


def _losses(log: RunLog) -> Markup | None:
    at = _steps(log.trained)
    if not at:
        return None
    lines = [Line(label="training", kind="plain", band=band([[event.loss for event in log.trained]], at))]
    tested = [event for event in log.evaluated if "loss" in event.results]
    if tested and _steps(tested):
        values = [event.results["loss"] for event in tested]
        lines.append(Line(label="evaluation", kind="planned", band=band([values], _steps(tested))))
    told = "A value of the training loss is the mean over the steps since the one before."
    return section(
        "Loss",
        notes([*filter(None, map(broken, lines))]),
        chart(
            lines,
            title="Loss of the run",
            told=told,
            down="loss",
            across=f"optimizer step. {told} {meaning(lines[0].band, '')}",
            show=number,
        ),
    )


def _evaluations(log: RunLog) -> Markup | None:
    if not log.evaluated:
        return None
    names = list(dict.fromkeys(name for event in log.evaluated for name in event.results))[:MOST_METRICS]
    shown = _some(log.evaluated)
    rows = [
        [
            f"step {words.whole(event.step)}",
            *(decimal(event.results[name]) if name in event.results else None for name in names),
            words.seconds(event.seconds),
            "best so far" if event.best else None,
        ]
        for event in shown
    ]
    columns = [("at", "name"), *((name, "number") for name in names), ("took", "number"), ("", "")]
    few = f"; {len(shown)} of {len(log.evaluated):,} are shown" if len(shown) < len(log.evaluated) else ""
    drawn = [_metric(log, name) for name in names if name != "loss"]
    return section(
        "Evaluations", element("div", *drawn, class_="side"), table(f"Results of the evaluations{few}", columns, rows)
    )


def _metric(log: RunLog, name: str) -> Markup | None:
    tested = [event for event in log.evaluated if name in event.results]
    at = _steps(tested)
    if len(at) < 2:
        return None
    line = Line(label=name, kind="planned", band=band([[event.results[name] for event in tested]], at))
    return chart([line], title=f"{name} of the evaluations", told="", down=name, across="optimizer step", show=number)


def _rates(log: RunLog) -> Markup | None:
    rates = [event.learning_rate for event in log.trained]
    momenta = [math.nan if event.momentum is None else event.momentum for event in log.trained]
    drawn = rate_charts([event.step for event in log.trained], rates, momenta)
    return section("Learning rate", drawn, rate_table(rates, momenta)) if drawn is not None else None


def _pace(log: RunLog) -> Markup | None:
    at = _steps(log.trained)
    if not at:
        return None
    rates = [event.samples_per_second for event in log.trained]
    waits = [event.data_wait_share for event in log.trained]
    rows = [_quartiles("samples a second", rates, words.pace), _quartiles("waiting for data", waits, words.part)]
    return section(
        "Pace",
        lead("What the log says of every stretch of steps; the first one also pays for the start."),
        element(
            "div",
            _one_line("Samples a second", "samples a second", rates, at, words.pace),
            _one_line("Share of the time spent waiting for data", "waiting for data", waits, at, words.part),
            class_="side",
        ),
        table(
            "Over the stretches of the log",
            [
                ("", "name"),
                *((name, "number") for name in ("lowest", "lower quarter", "median", "upper quarter", "highest")),
            ],
            [row for row in rows if row is not None],
        ),
    )


def _memory(log: RunLog) -> Markup | None:
    values = [math.nan if (size := words.known(event.memory_bytes)) is None else size for event in log.trained]
    factor, unit = words.unit_of(max(filter(math.isfinite, values), default=0.0))
    at, row = _steps(log.trained), _quartiles("most memory so far", values, words.size)
    if not at or row is None:
        return None
    columns = [
        ("", "name"),
        *((name, "number") for name in ("lowest", "lower quarter", "median", "upper quarter", "highest")),
    ]
    return section(
        "Memory over time",
        lead(
            "The most that was held since the process began, so the line only rises. One that goes on rising is a leak."
        ),
        _one_line("Most memory so far", f"most so far, {unit}", [value / factor for value in values], at, number),
        table("Bytes", columns, [row], "parts heard"),
    )


def _one_line(
    title: str, name: str, values: Sequence[float], at: Sequence[float], show: Callable[[float], str]
) -> Markup:
    drawn = band([values], at)
    told = f"{title}, over optimizer steps. {meaning(drawn, '')}"
    return chart(
        [Line(label=name, kind="planned", band=drawn)],
        title=title,
        told=told,
        down=name,
        across="optimizer step",
        show=show,
    )


def _where(log: RunLog) -> Markup:
    started, found = log.started, log.environment
    packages, machine = found.get("packages"), found.get("machine")
    versions = cast("dict[str, Any]", packages) if isinstance(packages, dict) else {}
    facts = cast("dict[str, Any]", machine) if isinstance(machine, dict) else {}
    items: list[tuple[str, Part]] = [("folder", log.folder)]
    if started is not None:
        batches = f"batches of {words.whole(started.batch_size)}"
        samples = "samples as they come" if started.samples is None else words.many(started.samples, "sample")
        items += [
            ("machine", started.machine),
            ("device", started.device),
            (
                "job",
                f"{words.many(started.parameters, 'parameter')}, {samples}, {batches}",
            ),
        ]
    items += [
        ("system", str(found.get("system", ""))),
        ("python", str(found.get("python", ""))),
        ("threads", str(found.get("threads", ""))),
        ("packages", ", ".join(f"{name} {text}" for name, text in versions.items())),
        ("processor", str(facts.get("processor", ""))),
    ]
    return section("Where this ran", pairs_of(items))


def _next(log: RunLog) -> Markup:
    return section("Next", element("p", element("code", next_command(log), class_="command")))


def _steps(events: Sequence[Trained] | Sequence[Evaluated]) -> list[float]:
    """Where the events stand on the axis; empty when a step is no number that can be drawn."""
    at = [known for event in events if (known := words.known(event.step)) is not None]
    return at if len(at) == len(events) else []


def _quartiles(name: str, values: Sequence[float], show: Callable[[float], str]) -> list[Part] | None:
    finite = sorted(value for value in values if words.known(value) is not None)
    if not finite:
        return None
    last = len(finite) - 1
    return [name, *(show(finite[round(last * part)]) for part in (0, 0.25, 0.5, 0.75, 1))]


def _some(events: Sequence[Evaluated]) -> list[Evaluated]:
    """At most so many, evenly chosen, with the first, the last and the best of all."""
    if len(events) <= MOST_EVALUATIONS:
        return list(events)
    best = max((position for position, event in enumerate(events) if event.best), default=0)
    chosen = {position * (len(events) - 1) // (MOST_EVALUATIONS - 2) for position in range(MOST_EVALUATIONS - 1)}
    return [events[position] for position in sorted(chosen | {best})]
