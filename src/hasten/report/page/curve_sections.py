"""Losses, the learning rate and the memory over time, as sections of a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from hasten.facts.formatting import byte_size
from hasten.facts.trials import Curves, Rates
from hasten.report.display import decimal, listed, many
from hasten.report.page.charts import Band, band, chart, number
from hasten.report.page.page_model import Cell, Chart, Column, Section, Table

MEMORY_ARMS = {"plain": "baseline", "planned": "with the plan", "whole plan": "with the plan"}
QUARTILES = ("lowest", "lower quarter", "median", "upper quarter", "highest")


def what_is_learned(curves: Curves | None) -> Section | None:
    if curves is None:
        return None
    longest = max((len(curve) for found in (curves.plain, curves.planned) for curve in found), default=0)
    arms = (("baseline", "plain", curves.plain), ("with the plan", "planned", curves.planned))
    bands = [band(f"{label} ({many(len(found), 'seed')})", kind, found) for label, kind, found in arms]
    drawn = chart(
        bands,
        title="Loss of the baseline and with the plan",
        description=f"Mean loss of {many(len(curves.seeds), 'seed')} over {many(longest, 'step')}. {curves.sentence}",
        y_label="loss",
        x_label=f"optimizer step. {meaning(bands[0], ' over the seeds')}",
    )
    return Section(
        title="What is learned",
        lead=f"{curves.verdict}: {curves.sentence}",
        charts=drawn,
        table=_finals(curves) if curves.seeds else None,
    )


def meaning(drawn: Band, over: str) -> str:
    """What a point and its band are. over: " over the seeds" where a point stands for several curves."""
    if drawn.stretch == 1 and not over:
        return "Nothing is smoothed."
    point = f"Each point stands for {drawn.stretch:,} steps" if drawn.stretch > 1 else "Each point is one step"
    end = "." if drawn.stretch > 1 else "; nothing is smoothed."
    return f"{point}: the line is the mean{over}, the band goes from the lowest to the highest{end}"


def rate_section(rates: Rates | None) -> Section | None:
    """Learning rate over optimizer steps, and momentum where there is one."""
    if rates is None or not rates.steps:
        return None
    shown = [("learning rate", "learning rate", "rate", rates.rates)]
    if rates.momenta:
        shown.append(("momentum", "momentum, or the first beta", "momentum", rates.momenta))
    rows = [[name, *map(decimal, (of[0], min(of), max(of), of[-1]))] for name, _, _, of in shown]
    return Section(
        title="Learning rate",
        charts=[each for _, label, kind, of in shown for each in over_steps(label, kind, of, rates.steps)],
        table=numbers("Of the planned run", ("first", "lowest", "highest", "last"), rows),
    )


def over_steps(
    name: str, kind: str, values: Sequence[float], at: Sequence[float], show: Callable[[float], str] = number
) -> list[Chart]:
    drawn = band(name, kind, [values], at)
    described = f"{name} over optimizer steps. {meaning(drawn, '')}"
    title = f"{name[:1].upper()}{name[1:]}"
    return chart([drawn], title=title, description=described, y_label=name, x_label="optimizer step", show=show)


def memory_over_time(memory: Mapping[str, Sequence[int]]) -> Section | None:
    """memory: by arm, bytes at the end of each window. The chart has baseline and plan; the table has all arms."""
    bands, rows = list[Band](), list[list[Cell | str]]()
    factor, unit = unit_of([each for sizes in memory.values() for each in sizes])
    for arm, sizes in memory.items():
        if not sizes:
            continue
        name, ordered = MEMORY_ARMS.get(arm, arm), sorted(sizes)
        if arm in MEMORY_ARMS:
            kind = "plain" if arm == "plain" else "planned"
            bands.append(band(name, kind, [[size / factor for size in sizes]]))
        rows.append([name, f"{len(sizes):,}", *map(byte_size, (ordered[0], ordered[len(ordered) // 2], ordered[-1]))])
    if not rows:
        return None
    drawn = chart(
        bands,
        title="Memory over time",
        description=f"Bytes held at the end of each window, for {listed([each.label for each in bands])}.",
        y_label=f"held, {unit}",
        x_label="window",
    )
    return Section(
        title="Memory over time",
        lead="Bytes held at the end of each window of steps, in the order they ran. A line that only rises is a leak.",
        charts=drawn,
        table=numbers("Bytes held at the end of a window", ("windows", "lowest", "median", "highest"), rows),
    )


def numbers(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> Table:
    """A table of numbers whose first column names them."""
    named: list[Column] = [("", "name"), *((name, "number") for name in columns)]
    return Table(caption=caption, columns=named, rows=rows, kind="parts hidden-caption")


def quartiles(name: str, values: Sequence[float], show: Callable[[float], str]) -> list[Cell | str]:
    """The row of a table with QUARTILES as its columns."""
    ordered, last = sorted(values), len(values) - 1
    return [name, *(show(ordered[round(last * part)]) for part in (0, 0.25, 0.5, 0.75, 1))]


def unit_of(sizes: Sequence[int]) -> tuple[int, str]:
    """The unit in which these bytes are read best, and how many bytes it has."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(max(max(sizes, default=0).bit_length() - 1, 0) // 10, len(units) - 1)
    return 1024**power, units[power]


def _finals(curves: Curves) -> Table:
    """The mean of the last tenth of each curve, which is what `prove loss` compares."""
    rows = list[list[Cell | str]]()
    for seed, plain, planned in zip(curves.seeds, curves.plain, curves.planned, strict=True):
        before, after = _final(plain), _final(planned)
        difference = f"{after - before:+.4g}".replace("-", "−")
        rows.append([f"seed {seed:,}", decimal(before), decimal(after), difference])
    columns = [("seed", "name"), ("baseline", "number"), ("with the plan", "number"), ("difference", "number")]
    caption = "Final loss: the mean of the last tenth of the steps"
    return Table(caption=caption, columns=columns, rows=rows, kind="parts")


def _final(curve: Sequence[float]) -> float:
    last = curve[-max(1, len(curve) // 10) :]
    return math.fsum(last) / len(last)
