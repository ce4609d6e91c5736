"""A search on the terminal: what was tried scrolls by as a table, and what is being measured changes in place below.

A terminal gets the table with a bar; anything else gets the same rows as plain lines. What no arm was started for is
counted, not listed: its reasons are in the plan.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, TextIO

from hasten.facts.choice import Choice, Speedup
from hasten.facts.plan import Between
from hasten.facts.trials import (
    Confirmed,
    Doing,
    Earned,
    Noise,
    Proven,
    Reached,
    Record,
    Surveyed,
    Tried,
    is_proven,
    verdict_of,
)
from hasten.report.display import BY_WINDOWS, duration, printable, spread, time_left
from hasten.report.terminal.output import bar, console_on, indented, is_plain, write_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

WIDTHS = (42, 26)  # of the columns for the choice and for how many times as fast it was
_STYLES = {"faster": "green", "kept": "bold green", "slower": "dim", "failed": "red", "not proven": "red"}


class Tuning:
    """Call record and doing as the search does; close it at the end, whatever happened.

    seconds: that the search may take; what is left of them is about the time that is left, as its end takes what it
    takes. stream: None is standard error.
    """

    def __init__(
        self, seconds: float, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._seconds, self._clock, self._began = stream or sys.stderr, seconds, clock, clock()
        self._screen = _Lines(self._stream) if is_plain(self._stream) else _Drawn(self._stream)
        self._headed = False

    def record(self, record: Record) -> None:
        match record:
            case Surveyed():
                self._screen.note("job", f"{record.job} on {record.machine}")
            case Noise():
                self._row("the same job again", _times(record.speedup), "what no difference looks like here")
            case Tried() if record.verdict != "skipped":
                seen = _times(record.speedup) if record.speedup else ""
                reason = "" if record.speedup else record.reason
                self._row(_added(record), seen, "cut short" if record.cut_short else record.verdict, reason)
            case Proven() if not record.passes:
                self._row(str(record.choice), "", "not proven", record.reason)
            case Confirmed() if record.choices:
                proven = is_proven(record)
                for each in record.earned:
                    self._row(f"the plan with {each.choice}", _times(each.speedup), _fate(each, proven=proven))
                told = "on new windows" if proven else verdict_of(record)
                self._row("the whole plan", _times(record.speedup), told)
            case _:
                pass

    def doing(self, doing: Doing) -> None:
        if doing.stays:
            self._screen.note("time", doing.what)
            return
        if doing.seconds_left is not None:
            self._screen.doing(doing, f"about {time_left(doing.seconds_left)} left")
            return
        left = self._seconds - (self._clock() - self._began) if doing.of_search is None else doing.of_search
        left = max(left, 0.0)
        self._screen.doing(doing, f"about {time_left(left)} left" if left else "longer than asked for")

    def close(self) -> None:
        self._screen.end()

    def _row(self, what: str, seen: str, verdict: str, reason: str = "") -> None:
        if not self._headed:
            self._headed = True
            self._screen.row("choice", "times as fast (95 %)", "verdict", "")
        self._screen.row(*map(printable, (what, seen, verdict, reason)))


def sentence(
    proven: Confirmed | None,
    plain_seconds: float,
    gained: Sequence[Reached] = (),
    *,
    between: Between | None = None,
    stops_early: bool = False,
) -> str:
    """What a person wants to know of a search, in one sentence.

    plain_seconds, between: of the job as it is, where no plan is proven, and their spread, if it is known.
    gained: of every choice that changes training and joined the plan, in that order; stops_early: whether early
    stopping can end the planned run before.
    """
    if stops_early:
        told = sentence(proven, plain_seconds, gained, between=between)
        return f"{told}; all of it where early stopping does not end the run before"
    if proven is None:
        takes = f"this job takes about {duration(plain_seconds)}{spread(between, BY_WINDOWS)}"
        told = (
            f"{takes}; nothing that was tried is proven to make {'its planned run shorter' if gained else 'it faster'}"
        )
    else:
        told = _of_the_planned_run(proven)
    return f"{told}; {_of_the_target(gained)}" if gained else told


def _of_the_planned_run(proven: Confirmed) -> str:
    ratio, plain, planned = proven.speedup, proven.plain.between, proven.planned_between
    return (
        f"this job would take {duration(proven.plain.total)}{spread(plain, BY_WINDOWS)}; "
        f"with this plan {duration(proven.planned_seconds)}{spread(planned)} "
        f"({ratio.ratio:.2f}×, 95 % {ratio.low:.2f}–{ratio.high:.2f}, {ratio.pairs} pairs)"
    )


def _of_the_target(gained: Sequence[Reached]) -> str:
    """Which seconds are compared, and that they are those of another training."""
    named = " and ".join(f"{each.choice} ({_of_seeds(each.speedup)})" for each in gained)
    after = [seconds for seconds in gained[-1].seconds_with if seconds is not None]
    before = [seconds for seconds in gained[0].seconds_without if seconds is not None]
    seconds = f"{duration(median(after))} of training instead of {duration(median(before))}"
    return (
        f"whole runs with {named}, which changes what is learned, came to the {gained[0].metric} that the job has at "
        f"its end in {seconds}, and end there"
    )


def _of_seeds(found: Speedup | None) -> str:
    return "" if found is None else f"{found.ratio:.2f}×, 95 % {found.low:.2f}–{found.high:.2f}, {found.pairs} seeds"


def _added(tried: Tried) -> str:
    return f"{tried.choice}{'' if not tried.on else ' on top of ' + _short(tried.on)}"


def _fate(earned: Earned, *, proven: bool) -> str:
    """What becomes of a choice; of a plan that is not proven as a whole, nothing is kept."""
    if not earned.kept:
        return "earned nothing"
    return "kept" if proven else "not proven"


def _short(choices: tuple[Choice, ...]) -> str:
    return str(choices[0]) if len(choices) == 1 else f"{len(choices)} choices"


def _times(found: Speedup) -> str:
    return f"{found.ratio:.2f}  ({found.low:.2f}–{found.high:.2f})"


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream, self._told = stream, ""

    def note(self, label: str, text: str) -> None:
        write_line(self._stream, f"{label}: {printable(text)}")

    def row(self, what: str, seen: str, verdict: str, reason: str) -> None:
        write_line(self._stream, _aligned(what, seen, verdict, reason))

    def doing(self, doing: Doing, left: str) -> None:
        if doing.what != self._told:
            self._told = doing.what
            write_line(self._stream, f"{printable(doing.what)} … {left}")

    def end(self) -> None:
        """Nothing to end."""


class _Drawn:
    def __init__(self, stream: TextIO) -> None:
        self._console = console_on(stream)
        self._live: Live | None = None

    def note(self, label: str, text: str) -> None:
        from rich.text import Text

        self._console.print()
        self._console.print(indented(Text.assemble((f"{label}  ", "dim"), printable(text))))
        self._console.print()

    def row(self, what: str, seen: str, verdict: str, reason: str) -> None:
        from rich.text import Text

        style = "dim" if verdict == "verdict" else _STYLES.get(verdict, "")
        line = Text(_aligned(what, seen, verdict, reason), style=style, no_wrap=True, overflow="ellipsis")
        self._console.print(indented(line))

    def doing(self, doing: Doing, left: str) -> None:
        from rich.console import Group
        from rich.live import Live

        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        unit = "rounds" if doing.seconds_left is None else "steps"
        rounds = f"{doing.done} of {doing.whole} {unit}" if doing.whole else ""
        row = bar(printable(doing.what), doing.done, max(doing.whole, 1), rounds, left)
        self._live.update(Group("", row, _standing(doing.ratios), ""), refresh=True)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()


def _standing(ratios: Mapping[str, float]) -> RenderableType:
    """How the arms that run stand so far, the fastest first."""
    from rich.text import Text

    ordered = sorted(ratios.items(), key=lambda item: -item[1])
    lines = [f"{printable(name):<{WIDTHS[0]}}{ratio:>5.2f} so far" for name, ratio in ordered]
    return indented(Text("\n".join(lines), style="dim"))


def _aligned(what: str, seen: str, verdict: str, reason: str) -> str:
    told = f"{verdict}: {reason}" if reason else verdict
    return f"{what:<{WIDTHS[0]}}  {seen:<{WIDTHS[1]}}{told}"
