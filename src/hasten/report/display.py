"""Values as people read them: short, with their unit. A number from a file can be anything; one that cannot be shown is
a dash."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from hasten.facts.choice import Choice, Speedup
from hasten.facts.formatting import byte_size, three_digits
from hasten.facts.formatting import printable as printable
from hasten.facts.plan import Between

UNKNOWN = "–"
BY_WINDOWS = "by most windows "  # what a spread is of
_MOST = 1e15  # of anything counted or timed: a larger number is a mistake, and breaks a page's layout


def known(number: float | None) -> float | None:
    """The number as a float; None for one that is not finite or absurdly large."""
    if number is None or not abs(number) < _MOST:  # an int of any size can be compared, but not converted
        return None
    return float(number)


def duration(seconds: float | None) -> str:
    """Three digits, or two units, at most: 340 µs, 2.31 ms, 850 ms, 12.3 s, 2 min 05 s, 1 h 02 min, 3 d 04 h."""
    found = known(seconds)
    if found is None or found < 0:
        return UNKNOWN
    if 0 < found < 0.0009995:
        return f"{found * 1e6:.0f} µs"
    if found < 0.9995:
        return "0 ms" if found == 0 else f"{three_digits(found * 1000)} ms"
    if found < 59.95:
        return f"{found:.1f} s"
    whole = round(found)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(found / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    hours = round(found / 3600)
    return f"{hours // 24} d {hours % 24:02} h"


def spread(between: Between | None, by: str = "") -> str:
    """Appended to the seconds it belongs to; empty where it is unknown or impossible. by: BY_WINDOWS for the first."""
    if between is None or not 0 <= between.low <= between.high or known(between.high) is None:
        return ""
    return f", {by}{duration(between.low)} to {duration(between.high)}"


def time_left(seconds: float) -> str:
    """An estimate, so no finer than a second: 8 s, 2 min 05 s."""
    return f"{min(round(seconds), 59)} s" if 0 <= seconds < 60 else duration(seconds)


def count(number: int) -> str:
    """Exact below ten million, then in millions or thousands of millions: 79,882, 86.6 M, 1.34 G."""
    if number < 10_000_000:
        return f"{number:,}"
    if number < 999_500_000:
        return f"{number / 1e6:.{1 if number < 99_950_000 else 0}f} M"
    return f"{number / 1e9:.2f} G"


def whole(number: float | None) -> str:
    found = known(number)
    return UNKNOWN if found is None else f"{found:,.0f}"


def many(number: int, thing: str) -> str:
    """1 step, 2 steps."""
    return f"{whole(number)} {thing}" + ("" if number == 1 else "s")


def size(bytes_: float | None) -> str:
    found = known(bytes_)
    return UNKNOWN if found is None or found < 0 else byte_size(int(found))


def scaled(number: float, unit: str) -> str:
    """Three digits and a decimal prefix: 14.2 MFLOP, 1.00 GFLOP/s."""
    if not math.isfinite(number):
        return f"{UNKNOWN} {unit}"
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


def fixed(number: float | None) -> str:
    """Two decimals, fewer for a large number: 1.31, 12.3."""
    found = known(number)
    return UNKNOWN if found is None else f"{found:.2f}" if abs(found) < 10 else three_digits(found)


def per_second(rate: float) -> str:
    """A rate with at least two digits: 12,345, 98, 4.2, 0.015."""
    if known(rate) is None:
        return UNKNOWN
    return f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.2g}"


def percent(share: float) -> str:
    return UNKNOWN if known(share) is None else f"{share:.0%}".replace("%", " %")


def ratio(speedup: Speedup) -> str:
    return f"{fixed(speedup.ratio)}×"


def interval(speedup: Speedup) -> str:
    return f"{fixed(speedup.low)}–{fixed(speedup.high)}"


def measured(speedup: Speedup) -> str:
    """1.00× (0.98–1.02, 16 pairs)."""
    return f"{ratio(speedup)} ({interval(speedup)}, {many(speedup.pairs, 'pair')})"


def named(choice: Choice) -> str:
    """As the plan writes it: precision = bf16, with TOML's own words for true and false."""
    options = ", ".join(f"{key} = {_value(value)}" for key, value in choice.options.items())
    return f"{choice.technique} = {_value(choice.value)}" + (f" ({options})" if options else "")


def listed(texts: Sequence[str], most: int = 6) -> str:
    """a, b and c; of many, the first ones and how many more there are."""
    shown = [*texts[:most], *([f"{len(texts) - most:,} more"] if len(texts) > most else [])]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column flush left, the others flush right, a rule below the header."""
    from rich.cells import cell_len

    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(header))]
    lines: list[str] = []
    for row in cells:
        padding = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        first, *others = zip(row, padding, strict=True)
        parts = [first[0] + first[1], *(space + cell for cell, space in others)]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("─" * width for width in widths))
    return lines


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value) if known(value) is not None else UNKNOWN
    if isinstance(value, list):
        return f"[{', '.join(map(_value, cast('list[object]', value)))}]"
    return str(value)
