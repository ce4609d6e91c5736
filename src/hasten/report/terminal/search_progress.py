"""Progress of a search: a table of what was tried, and below it what is being measured.

Techniques that were skipped or refused have no row; their reasons are in the plan.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

from hasten.facts.choice import Choice
from hasten.facts.formatting import printable
from hasten.facts.plan import Speedup
from hasten.facts.trials import Budget, Confirmed, Doing, Noise, Proven, Record, Surveyed, Tried, is_proven, verdict_of
from hasten.report.display import listed, many, time_left
from hasten.report.script_budget import step_parts
from hasten.report.sentence import Sentence
from hasten.report.terminal.output import WIDE_LABEL, Output, bar
from hasten.report.terminal.progress_bar import SILENT_SECONDS

if TYPE_CHECKING:
    from rich.console import RenderableType

UNDER_WAY = " … "  # between what is done and the time that is left
CHOICE, TIMES, VERDICT = 44, 22, 18  # columns; a narrow terminal has fewer for the choice
_STYLES = {
    "verdict": "dim",
    "faster": "green",
    "kept": "bold green",
    "slower": "dim",
    "failed": "red",
    "not proven": "red",
}


class SearchProgress:
    """The search calls record and doing; close it at the end, whatever happened.

    seconds: that the search may take. stream: None is standard error. is_shown: not with --quiet.
    """

    def __init__(
        self,
        seconds: float,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        is_shown: bool = True,
    ) -> None:
        self._output, self._seconds = Output(stream or sys.stderr, WIDE_LABEL), seconds
        left = self._output.width - TIMES - VERDICT - 4  # with the spaces between them
        self._choice_columns = max(min(CHOICE, left), 1)
        self._clock, self._began = clock, clock()
        self._end: float | None = None  # by the clock, when the result is expected
        self._is_shown, self._has_header = is_shown, False
        self._shown, self._shown_at = "", self._began  # what is under way, as a line that stays has it
        self._base: tuple[Choice, ...] = ()  # that the last trial was on top of
        self._confirmed: tuple[Choice, ...] = ()

    def record(self, record: Record) -> None:
        if not self._is_shown:
            return
        match record:
            case Surveyed():
                self._output.note("machine", record.machine)
            case Budget(arm="plain"):
                parts = step_parts(record.step, asdict(record), reads_loader=record.data_wait > 0)
                self._output.note("step", f"{parts} ({many(record.steps, 'step')})")
            case Noise():
                self._row("the baseline again", _times(record.speedup), "measurement error")
            case Tried() if record.verdict != "skipped":
                self._tried(record)
            case Proven() if not record.passes:
                self._row(str(record.choice), "", "not proven", record.reason)
            case Confirmed() if record.choices:
                self._confirm(record)
            case _:
                pass

    def doing(self, doing: Doing) -> None:
        if not self._is_shown:
            return
        if doing.stays:
            self._output.note("time", doing.what)
            return
        now = self._clock()
        if doing.to_end is not None:
            self._end = now + doing.to_end
        left = self._left(doing, now)
        done = f"{doing.done} of {doing.whole} {'rounds' if doing.ratios else 'steps'}" if doing.whole else ""
        if not self._output.is_plain:
            row = bar(doing.what, doing.done, max(doing.whole, 1), done, left)
            self._output.redraw("", row, _ratios(doing.ratios, self._choice_columns), "")
            return
        activity = doing.what.partition(":")[0]  # what follows may change every second
        is_new = activity != self._shown
        if is_new or now - self._shown_at >= SILENT_SECONDS:
            self._shown, self._shown_at = activity, now
            so_far = f": {done}" if done and not is_new else ""
            self._output.line(f"{doing.what}{so_far}{UNDER_WAY}{left}")

    def close(self) -> None:
        self._output.close()

    def _left(self, doing: Doing, now: float) -> str:
        if doing.seconds_left is not None:
            seconds = time_left(doing.seconds_left)
            return f"gives up in {seconds}" if doing.waits else f"about {seconds} left"
        left = self._seconds - (now - self._began) if doing.of_search is None else doing.of_search
        to_end = left if self._end is None else self._end - now
        if left > 0:
            return f"about {time_left(max(left, to_end))} left"
        planned = f"the planned {self._seconds:g} s"
        if self._end is None:
            return f"{planned} are over"
        return (
            f"about {time_left(to_end)} left, past {planned}" if to_end > 0 else f"later than expected, past {planned}"
        )

    def _tried(self, tried: Tried) -> None:
        """In its row. A choice is in several where the plan has grown, and where it then does not join the plan."""
        if tried.on != self._base:
            self._base = tried.on
            choices = listed([*map(str, tried.on)])
            base = f"{choices}, which can change what others gain" if choices else "the baseline"
            self._output.line(f"on top of {base}:")
        if tried.speedup is None:
            self._row(str(tried.choice), "", tried.verdict, tried.reason)
        elif later := tried.reason.removeprefix(str(tried.speedup)):  # the same trial, and why it does not count
            self._output.line(f"{tried.choice} is {tried.verdict}{later}")
        else:
            verdict = "stopped early" if tried.cut_short else tried.verdict
            self._row(str(tried.choice), _times(tried.speedup), verdict)

    def _confirm(self, confirmed: Confirmed) -> None:
        proven = is_proven(confirmed)
        if self._confirmed:
            removed = [str(each) for each in self._confirmed if each not in confirmed.choices]
            self._output.line(f"measured again{f' without {listed(removed)}' if removed else ''}:")
        self._confirmed = confirmed.choices
        for each in confirmed.earned:
            verdict = ("kept" if proven else "not proven") if each.kept else "no gain"
            self._row(f"the plan with {each.choice}", _times(each.speedup), verdict)
        verdict = "measured again" if proven else verdict_of(confirmed)
        self._row("the whole plan", _times(confirmed.speedup), verdict)

    def _row(self, what: str, seen: str, verdict: str, reason: str = "") -> None:
        if not self._has_header:
            self._has_header = True
            self._row("choice", "times as fast (95 %)", "verdict")
        last = f"{verdict}: {reason}" if reason else verdict
        text = f"{printable(what):<{self._choice_columns}}  {printable(seen):<{TIMES}}{last}"
        self._output.line(text, _STYLES.get(verdict, ""))


class SearchElsewhere:
    """The progress of a search in another process, line by line, and its result; on standard error."""

    def __init__(self) -> None:
        self._output = Output(sys.stderr)

    def line(self, text: str) -> None:
        """What is under way changes in place where that can be."""
        if UNDER_WAY in text and not self._output.is_plain:
            from rich.text import Text

            self._output.redraw(Text(printable(text), style="dim"))
        else:
            self._output.line(text.strip())

    def result(self, headline: str, small_print: str) -> None:
        self._output.close()
        self._output.result(Sentence(headline=headline, small_print=small_print), [], "")

    def close(self) -> None:
        self._output.close()


def _times(found: Speedup) -> str:
    return f"{found.ratio:.2f}  ({found.low:.2f}–{found.high:.2f})"


def _ratios(ratios: Mapping[str, float], columns: int) -> RenderableType:
    """The running arms so far, the fastest first."""
    from rich.text import Text

    ordered = sorted(ratios.items(), key=lambda item: -item[1])
    lines = [f"{printable(name):<{columns}}{ratio:>5.2f} so far" for name, ratio in ordered]
    return Text("\n".join(lines), style="dim")
