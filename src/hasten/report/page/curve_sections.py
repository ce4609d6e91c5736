"""Losses, the learning rate and the memory over time, as sections of a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from hasten.facts.trials import Curves, Rates
from hasten.report.display import decimal, known, listed, many, size, whole
from hasten.report.page.charts import Band, band, chart, number
from hasten.report.page.page_model import Cell, Chart, Column, Section, Table

MOST_ROWS = 40
MEMORY_ARMS = {"plain": "baseline", "planned": "with the plan", "whole plan": "with the plan"}
QUARTILES = ("lowest", "lower quarter", "median", "upper quarter", "highest")
LEAK = "A line that only rises is a leak."


def what_is_learned(curves: Curves | None) -> Section | None:
    if curves is None:
        return None
    title, result = "What is learned", f"{curves.verdict}: {curves.sentence}"
    longest = max((len(curve) for found in (curves.plain, curves.planned) for curve in found), default=0)
    if not longest:
        return Section(title=title, lead=result) if curves.sentence else None
    arms = (("baseline", "plain", curves.plain), ("with the plan", "planned", curves.planned))
    bands = [band(f"{label} ({many(len(found), 'seed')})", kind, found) for label, kind, found in arms]
    drawn = chart(
        bands,
        title="Loss of the baseline and with the plan",
        description=f"Mean loss of {many(len(curves.seeds), 'seed')} over {many(longest, 'step')}. {curves.sentence}",
        y_label="loss",
        x_label=f"optimizer step. {meaning(bands[0], ' over the seeds')}",
        show=number,
    )
    charts = [drawn] if drawn is not None else []
    return Section(title=title, lead=result, notes=broken(bands), charts=charts, table=_finals(curves))


def meaning(drawn: Band, over: str) -> str:
    """What a point and its band are. over: " over the seeds" where a point stands for several curves."""
    if drawn.stretch == 1 and not over:
        return "Nothing is smoothed."
    point = f"Each point stands for {drawn.stretch:,} steps" if drawn.stretch > 1 else "Each point is one step"
    end = "." if drawn.stretch > 1 else "; nothing is smoothed."
    return f"{point}: the line is the mean{over}, the band goes from the lowest to the highest{end}"


def broken(bands: Sequence[Band]) -> list[str]:
    """What to say about values that are not finite."""
    return [
        f"{each.label}: {many(each.broken, 'value')} of the loss "
        + ("is not finite, and leaves a gap." if each.broken == 1 else "are not finite, and leave gaps.")
        for each in bands
        if each.broken
    ]


def learning_rate(steps: Sequence[int], rates: Sequence[float], momenta: Sequence[float]) -> Section | None:
    """Learning rate over optimizer steps, and momentum where there is one; None where they cannot be drawn."""
    at = [place for step in steps if (place := known(step)) is not None]
    if not at or len(at) != len(steps) or len(rates) != len(steps):
        return None
    charts = [over_steps("learning rate", "rate", rates, at, number)]
    if len(momenta) == len(steps) and any(map(math.isfinite, momenta)):
        charts.append(over_steps("momentum, or the first beta", "momentum", momenta, at, number))
    rows = list[list[Cell | str]]()
    for name, values in (("learning rate", rates), ("momentum", momenta)):
        if finite := [value for value in values if math.isfinite(value)]:
            rows.append([name, *map(decimal, (finite[0], min(finite), max(finite), finite[-1]))])
    table = numbers("Of the planned run", ("first", "lowest", "highest", "last"), rows)
    return Section(title="Learning rate", charts=[each for each in charts if each is not None], table=table)


def rate_section(rates: Rates | None) -> Section | None:
    return learning_rate(rates.steps, rates.rates, rates.momenta) if rates is not None else None


def over_steps(
    name: str, kind: str, values: Sequence[float], at: Sequence[float], show: Callable[[float], str]
) -> Chart | None:
    drawn = band(name, kind, [values], at)
    described = f"{name} over optimizer steps. {meaning(drawn, '')}"
    title = f"{name[:1].upper()}{name[1:]}"
    return chart([drawn], title=title, description=described, y_label=name, x_label="optimizer step", show=show)


def memory_over_time(memory: Mapping[str, Sequence[float]]) -> Section | None:
    """memory: by arm, bytes at the end of each window. The chart has baseline and plan; the table has all arms."""
    bands, rows = list[Band](), list[list[Cell | str]]()
    factor, unit = unit_of([each for sizes in memory.values() for each in sizes])
    for arm, sizes in memory.items():
        values = [finite_or_gap(each) for each in sizes]
        finite = sorted(filter(math.isfinite, values))
        if not finite:
            continue
        name = MEMORY_ARMS.get(arm, arm)
        if arm in MEMORY_ARMS:
            kind = "plain" if arm == "plain" else "planned"
            bands.append(band(name, kind, [[value / factor for value in values]]))
        rows.append([name, f"{len(values):,}", *map(size, (finite[0], finite[len(finite) // 2], finite[-1]))])
    if not rows:
        return None
    drawn = chart(
        bands,
        title="Memory over time",
        description=f"Bytes held at the end of each window, for {listed([each.label for each in bands])}.",
        y_label=f"held, {unit}",
        x_label="window",
        show=number,
    )
    caption, columns = "Bytes held at the end of a window", ("windows", "lowest", "median", "highest")
    return Section(
        title="Memory over time",
        lead=f"Bytes held at the end of each window of steps, in the order they ran. {LEAK}",
        charts=[drawn] if drawn is not None else [],
        table=numbers(caption, columns, rows[:MOST_ROWS]),
    )


def numbers(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> Table | None:
    """A table of numbers whose first column names them."""
    named: list[Column] = [("", "name"), *((name, "number") for name in columns)]
    return Table(caption=caption, columns=named, rows=rows, kind="parts heard") if rows else None


def quartiles(name: str, values: Sequence[float], show: Callable[[float], str]) -> list[list[Cell | str]]:
    """The row of a table with QUARTILES as its columns; none without a value."""
    finite = sorted(value for value in values if known(value) is not None)
    last = len(finite) - 1
    return [[name, *(show(finite[round(last * part)]) for part in (0, 0.25, 0.5, 0.75, 1))]] if finite else []


def finite_or_gap(value: float) -> float:
    found = known(value)
    return math.nan if found is None else found


def unit_of(sizes: Sequence[float]) -> tuple[int, str]:
    """The unit in which these bytes are read best, and how many bytes it has."""
    most = max((each for each in map(finite_or_gap, sizes) if not math.isnan(each)), default=0.0)
    powers = enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    return next(((1024**power, name) for power, name in powers if most < 1024 ** (power + 1)), (1024**5, "PiB"))


def _finals(curves: Curves) -> Table | None:
    """The mean of the last tenth of each curve, which is what `prove loss` compares."""
    pairs = list(zip(curves.seeds, curves.plain, curves.planned, strict=False))
    rows = list[list[Cell | str]]()
    for seed, plain, planned in pairs[:MOST_ROWS]:
        before, after = _final(plain), _final(planned)
        difference = f"{after - before:+.4g}" if math.isfinite(after - before) else decimal(after - before)
        rows.append([f"seed {whole(seed)}", decimal(before), decimal(after), difference.replace("-", "−")])
    columns = [("seed", "name"), ("baseline", "number"), ("with the plan", "number"), ("difference", "number")]
    more = f", of the first {MOST_ROWS} of {len(pairs):,} seeds" if len(pairs) > MOST_ROWS else ""
    caption = f"Final loss: the mean of the last tenth of the steps{more}"
    return Table(caption=caption, columns=columns, rows=rows, kind="parts") if rows else None


def _final(curve: Sequence[float]) -> float:
    last = curve[-max(1, len(curve) // 10) :]
    try:
        return math.fsum(last) / len(last) if last else math.nan
    except (OverflowError, ValueError):  # the sum fits no double, or there are infinities of both signs
        return math.nan
