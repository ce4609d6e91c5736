"""Values as people read them: short, with their unit. A time or a number that is not known is a dash."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from hasten.facts.formatting import printable as printable
from hasten.facts.formatting import shortened, three_digits
from hasten.facts.plan import Speedup

MOST_COLUMNS = 100  # of a line, on a terminal and elsewhere
UNKNOWN = "–"
_NARROWEST = 8  # columns of a cell that is cut
STEP_PARTS = {
    "data_wait": "waiting for data",
    "transfer": "copying to the device",
    "forward": "forward pass and loss",
    "backward": "backward pass",
    "optimizer": "clipping and the update",
    "python": "Python, and the rest",
}


def duration(seconds: float | None) -> str:
    """Three digits, or two units, at most: 340 µs, 2.31 ms, 850 ms, 12.3 s, 2 min 05 s, 1 h 02 min, 3 d 04 h."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN
    if 0 < seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return "0 ms" if seconds == 0 else f"{three_digits(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02} h"


def time_left(seconds: float) -> str:
    """An estimate, so no finer than a second: 8 s, 2 min 05 s."""
    return f"{min(round(seconds), 59)} s" if 0 <= seconds < 60 else duration(seconds)


def count(number: int) -> str:
    """Exact below ten million, then in millions or thousands of millions: 79,882, 86.6 M, 1.34 G."""
    return f"{number:,}" if number < 10_000_000 else scaled(number, "")


def many(number: int, thing: str) -> str:
    """1 step, 2 steps."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def scaled(number: float, unit: str) -> str:
    """Three digits and a decimal prefix: 14.2 MFLOP, 1.00 GFLOP/s."""
    prefixes = ["", "k", "M", "G", "T", "P", "E"]
    while abs(number) >= 999.5 and len(prefixes) > 1:
        number /= 1000
        prefixes.pop(0)
    return f"{three_digits(number)} {prefixes[0]}{unit}"


def decimal(number: float) -> str:
    """Four significant digits, and never a false zero: 0.2134, 12.34, 3.1e-05. NaN and infinity by name."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "infinity" if number > 0 else "-infinity"
    if number == 0:
        return "0"
    if not 1e-4 <= abs(number) < 1e6:
        return f"{number:.1e}"
    return f"{number:#.4g}" if abs(number) < 999.95 else f"{number:.0f}"


def fixed(number: float) -> str:
    """Two decimals, fewer for a large number: 1.31, 12.3."""
    return f"{number:.2f}" if abs(number) < 10 else three_digits(number)


def per_second(rate: float) -> str:
    """A rate with at least two digits: 12,345, 98, 4.2, 0.015."""
    return f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.2g}"


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def ratio(speedup: Speedup) -> str:
    return f"{fixed(speedup.ratio)}×"


def interval(speedup: Speedup) -> str:
    return f"{fixed(speedup.low)}–{fixed(speedup.high)}"


def measured(speedup: Speedup) -> str:
    """1.00× (0.98–1.02, 16 pairs)."""
    return f"{ratio(speedup)} ({interval(speedup)}, {many(speedup.pairs, 'pair')})"


def listed(texts: Sequence[str], most: int = 6) -> str:
    """a, b and c; of many, the first ones and how many more there are."""
    shown = [*texts[:most], *([f"{len(texts) - most:,} more"] if len(texts) > most else [])]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[int] = ()) -> list[str]:
    """Lines of a table with a rule below the header. The first column, and those of words, are flush left. Where the
    lines would be too long, the widest column is cut."""
    from rich.cells import cell_len

    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(header))]
    if (over := sum(widths) + 2 * len(widths) - MOST_COLUMNS) > 0:
        widest = widths.index(max(widths))
        widths[widest] = max(widths[widest] - over, _NARROWEST)
        cells = [
            [shortened(cell, widths[widest]) if column == widest else cell for column, cell in enumerate(row)]
            for row in cells
        ]
    lines: list[str] = []
    for row in cells:
        padding = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        columns = enumerate(zip(row, padding, strict=True))
        parts = [cell + space if not column or column in words else space + cell for column, (cell, space) in columns]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("─" * width for width in widths))
    return lines
