"""Numbers as a page shows them. A number from a file can be anything; what cannot be shown is a dash."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from hasten.facts.choice import Choice, Speedup
from hasten.facts.formatting import byte_size, three_digits
from hasten.facts.plan import Between
from hasten.facts.trials import Confirmed, Verdict, verdict_of
from hasten.report.display import BY_WINDOWS, UNKNOWN, duration, per_second, percent, spread

_MOST = 1e15  # of anything that is counted or timed: beyond it a number is a mistake, and breaks the layout


def known(number: float | None) -> float | None:
    """The number as a float; None for one that is not finite, or that is absurdly large."""
    if number is None or not abs(number) < _MOST:  # a comparison, as an int of any size can be compared
        return None
    return float(number)


def seconds(number: float | None) -> str:
    found = known(number)
    return UNKNOWN if found is None else duration(found)


def with_spread(number: float | None, between: Between | None, by: str = "") -> str:
    """Seconds, with what they lie between where that is known, and possible. by: as report.text.spread has it."""
    shown = between is not None and 0 <= between.low <= between.high and known(between.high) is not None
    return seconds(number) + (spread(between, by) if shown else "")


def size(bytes_: float | None) -> str:
    found = known(bytes_)
    return UNKNOWN if found is None or found < 0 else byte_size(int(found))


def unit_of(most: float) -> tuple[int, str]:
    """The unit in which bytes up to so many are read best, and how many bytes it has."""
    powers = enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    return next(((1024**power, name) for power, name in powers if most < 1024 ** (power + 1)), (1024**5, "PiB"))


def whole(number: float | None) -> str:
    found = known(number)
    return UNKNOWN if found is None else f"{found:,.0f}"


def plainly(number: float | None, digits: int = 2) -> str:
    """With so many decimals, fewer for a large one."""
    found = known(number)
    return UNKNOWN if found is None else f"{found:.{digits}f}" if abs(found) < 10 else three_digits(found)


def pace(samples_per_second: float) -> str:
    found = known(samples_per_second)
    return UNKNOWN if found is None else per_second(found)


def part(share_: float) -> str:
    found = known(share_)
    return UNKNOWN if found is None else percent(found)


def share(part: float | None, of: float | None) -> str:
    top, bottom = known(part), known(of)
    return UNKNOWN if top is None or bottom is None or top < 0 or bottom <= 0 else percent(top / bottom)


def ratio(speedup: Speedup) -> str:
    return f"{plainly(speedup.ratio)}×"


def interval(speedup: Speedup) -> str:
    return f"{plainly(speedup.low)}–{plainly(speedup.high)}"


def measured(speedup: Speedup) -> str:
    return f"{ratio(speedup)} ({interval(speedup)}, {pairs(speedup)})"


def pairs(speedup: Speedup) -> str:
    return many(speedup.pairs, "pair")


def many(number: int, thing: str) -> str:
    return f"{whole(number)} {thing}" + ("" if number == 1 else "s")


def named(choice: Choice) -> str:
    """As the plan has it: precision = bf16, with TOML's own words for true and false."""
    options = ", ".join(f"{key} = {_value(value)}" for key, value in choice.options.items())
    return f"{choice.technique} = {_value(choice.value)}" + (f" ({options})" if options else "")


def finish_sentence(confirmed: Confirmed) -> str:
    """What a confirmed plan makes of the job, as the search itself has ended with."""
    found = confirmed.speedup
    plain = with_spread(confirmed.plain.total, confirmed.plain.between, BY_WINDOWS)
    planned = with_spread(confirmed.planned_seconds, confirmed.planned_between)
    told = f"{ratio(found)}, 95 % {interval(found)}, {pairs(found)}"
    match verdict_of(confirmed):
        case Verdict.FASTER:
            return f"This job would take {plain}; with this plan {planned} ({told})"
        case Verdict.SLOWER:
            return f"This job takes {plain}, and longer with this plan: {planned} ({told})"
        case Verdict.WITHIN_NOISE:
            told = f"{told}; the job beside itself {interval(confirmed.noise)}"
            return f"This job takes {plain}, and this plan is no farther off than the job is from itself ({told})"
        case Verdict.TOO_LITTLE:
            return f"This job takes {plain}, and this plan gains less than 1 % ({told})"
        case Verdict.NO_DIFFERENCE:
            return f"This job takes {plain}, and this plan makes no difference that can be told from noise ({told})"


def unbroken(sentence: str) -> str:
    """The sentence with every number kept on one line with what follows it."""
    return re.sub(r"(?<=\d) (?=\S)", "\N{NO-BREAK SPACE}", sentence)


def listed(texts: Sequence[str], most: int = 6) -> str:
    """a, b and c; of many the first ones, and how many more there are."""
    shown = [*texts[:most], *([f"{len(texts) - most:,} more"] if len(texts) > most else [])]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value) if known(value) is not None else UNKNOWN
    if isinstance(value, list):
        return f"[{', '.join(map(_value, cast('list[object]', value)))}]"
    return str(value)
