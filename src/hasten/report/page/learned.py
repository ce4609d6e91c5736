"""What is learned, with and without the plan: losses, the learning rate, and the memory that it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hasten.facts.trials import Curves, Rates
from hasten.report.display import decimal
from hasten.report.page import words
from hasten.report.page.drawing import Line, chart
from hasten.report.page.markup import Markup, Part, element, joined
from hasten.report.page.shell import lead, notes, section, table
from hasten.report.page.thinning import Band, band

MOST_ROWS = 40
MEMORY_ARMS = {"plain": "as it is", "planned": "with the plan", "whole plan": "with the plan"}


def number(value: float) -> str:
    """A mark on an axis."""
    return f"{value:.6g}"


def what_is_learned(curves: Curves | None, rates: Rates | None) -> Markup | None:
    parts = [*(_losses(curves) if curves is not None else []), _rates(rates) if rates is not None else None]
    shown = [part for part in parts if part is not None]
    return section("What is learned", *shown) if shown else None


def rate_charts(steps: Sequence[int], rates: Sequence[float], momenta: Sequence[float]) -> Markup | None:
    """Learning rate over optimizer steps, and momentum where there is one; None where the numbers cannot be drawn."""
    at = [known for step in steps if (known := words.known(step)) is not None]
    if not at or len(at) != len(steps) or len(rates) != len(steps):
        return None
    drawn = [_rate_chart(band([rates], at), "learning rate", "rate")]
    if len(momenta) == len(steps) and any(map(math.isfinite, momenta)):
        drawn.append(_rate_chart(band([momenta], at), "momentum, or the first beta", "momentum"))
    return element("div", *drawn, class_="side")


def rate_table(rates: Sequence[float], momenta: Sequence[float]) -> Markup | None:
    rows = [_span("learning rate", rates), _span("momentum", momenta)]
    shown = [row for row in rows if row is not None]
    columns = [("", "name"), *((name, "number") for name in ("first", "lowest", "highest", "last"))]
    return table("Of the planned run", columns, shown, "parts heard") if shown else None


def memory_over_time(memory: Mapping[str, Sequence[float]]) -> Markup | None:
    """memory: by arm, bytes at the end of each window. Drawn are the plain job and the plan; the table has all."""
    lines, rows = list[Line](), list[list[Part]]()
    factor, unit = words.unit_of(
        max((words.known(size) or 0.0 for sizes in memory.values() for size in sizes), default=0.0)
    )
    for arm, sizes in memory.items():
        values = [math.nan if (known := words.known(size)) is None else known for size in sizes]
        finite = sorted(filter(math.isfinite, values))
        if not finite:
            continue
        name = MEMORY_ARMS.get(arm, arm)
        if arm in MEMORY_ARMS:
            drawn = band([[value / factor for value in values]])
            lines.append(Line(label=name, kind="plain" if arm == "plain" else "planned", band=drawn))
        rows.append([name, f"{len(values):,}", *map(words.size, (finite[0], finite[len(finite) // 2], finite[-1]))])
    if not rows:
        return None
    columns = [("", "name"), *((name, "number") for name in ("windows", "lowest", "median", "highest"))]
    return section(
        "Memory over time",
        lead("Bytes held at the end of each window of steps, in the order they ran. A line that only rises is a leak."),
        chart(
            lines,
            title="Memory over time",
            told=f"Bytes held at the end of each window, for {words.listed([line.label for line in lines])}.",
            down=f"held, {unit}",
            across="window",
            show=number,
        )
        if lines
        else None,
        table("Bytes held at the end of a window", columns, rows[:MOST_ROWS], "parts heard"),
    )


def _losses(curves: Curves) -> list[Markup | None]:
    lines = [
        Line(label=f"{label} ({words.many(len(found), 'seed')})", kind=kind, band=band(found))
        for label, kind, found in (("as it is", "plain", curves.plain), ("with the plan", "planned", curves.planned))
    ]
    longest = max((len(curve) for found in (curves.plain, curves.planned) for curve in found), default=0)
    seeds = words.many(len(curves.seeds), "seed")
    if not longest:
        return [lead(curves.sentence)] if curves.sentence else []
    return [
        element("p", element("strong", f"{curves.verdict}: "), curves.sentence, class_="lead"),
        notes([*filter(None, map(broken, lines))]),
        chart(
            lines,
            title="Loss, as it is and with the plan",
            told=f"Mean loss of {seeds} over {words.many(longest, 'step')}. {curves.sentence}",
            down="loss",
            across=f"optimizer step. {meaning(lines[0].band, 'over the seeds')}",
            show=number,
        ),
        _finals(curves),
    ]


def meaning(drawn: Band, over: str) -> str:
    """What a point and its band are, so that nobody takes a mean for a measurement."""
    around = f" {over}" if over else ""
    if drawn.stretch > 1:
        mean = f"Each point stands for {drawn.stretch:,} steps: the line is their mean{around}"
        return f"{mean}, the band goes from the lowest to the highest."
    if not over:
        return "Nothing is smoothed."
    mean = f"Each point is one step: the line is the mean{around}"
    return f"{mean}, the band goes from the lowest to the highest; nothing is smoothed."


def broken(line: Line) -> str:
    if not line.band.broken:
        return ""
    told = "is not finite, and leaves a gap" if line.band.broken == 1 else "are not finite, and leave gaps"
    return f"{line.label}: {words.many(line.band.broken, 'value')} of the loss {told}."


def _finals(curves: Curves) -> Markup | None:
    """The mean of the last tenth of each curve, which is what the judge of losses compares."""
    pairs = list(zip(curves.seeds, curves.plain, curves.planned, strict=False))
    rows = list[list[Part]]()
    for seed, plain, planned in pairs[:MOST_ROWS]:
        before, after = _final(plain), _final(planned)
        rows.append([f"seed {words.whole(seed)}", decimal(before), decimal(after), _signed(after - before)])
    columns = [("seed", "name"), ("as it is", "number"), ("with the plan", "number"), ("difference", "number")]
    more = f", of the first {MOST_ROWS} of {len(pairs):,} seeds" if len(pairs) > MOST_ROWS else ""
    return table(f"Final loss: the mean of the last tenth of the steps{more}", columns, rows, "parts") if rows else None


def _final(curve: Sequence[float]) -> float:
    last = curve[-max(1, len(curve) // 10) :]
    try:
        return math.fsum(last) / len(last) if last else math.nan
    except (OverflowError, ValueError):  # their sum fits no double, or they are infinite on both sides
        return math.nan


def _signed(value: float) -> str:
    return f"+{decimal(value)}" if value > 0 else decimal(value).replace("-", "−")


def _rates(rates: Rates) -> Markup | None:
    drawn = rate_charts(rates.steps, rates.rates, rates.momenta)
    return joined([drawn, rate_table(rates.rates, rates.momenta)]) if drawn is not None else None


def _rate_chart(drawn: Band, name: str, kind: str) -> Markup:
    line = Line(label=name, kind=kind, band=drawn)
    told = f"{name} against optimizer steps."
    return chart(
        [line], title=f"{name} of the run".capitalize(), told=told, down=name, across="optimizer step", show=number
    )


def _span(name: str, values: Sequence[float]) -> list[Part] | None:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    return [name, *map(decimal, (finite[0], min(finite), max(finite), finite[-1]))]
