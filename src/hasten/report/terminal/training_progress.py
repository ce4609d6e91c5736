"""Progress of a run on the terminal.

Two screens show the same facts. A terminal gets a quiet block that changes in place: a bar, and five numbers that
always stand at the same spot; what stays true scrolls above it. Anything else (a pipe, a file, a dumb terminal,
NO_COLOR) gets plain lines without a control code, one for each fact.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from hasten.facts.events import Evaluated, Event, Finished, Noticed, Preparing, Resumed, Saved, Started, Trained
from hasten.facts.formatting import byte_size
from hasten.report.display import count, decimal, duration, per_second, percent, printable, time_left
from hasten.report.terminal.output import (
    bar,
    console_on,
    draw_block,
    indented,
    is_plain,
    labelled,
    plain_block,
    write_line,
)
from hasten.report.terminal.progress_bar import Waiting

if TYPE_CHECKING:
    from rich.console import RenderableType


class Progress:
    """A receiver of a run's events.

    stream: where to write; None is standard output as it is now.
    next_command: what the summary offers to do next; empty offers nothing.
    """

    def __init__(self, stream: TextIO | None = None, *, next_command: str = "") -> None:
        self._output = stream or sys.stdout
        self._screen = _PlainScreen(self._output) if is_plain(self._output) else _LiveScreen(self._output)
        self._next_command = next_command
        self._preparing: Waiting | None = None
        self._started: Started | None = None
        self._first: Trained | None = None

    def log(self, event: Event) -> None:
        if not isinstance(event, Preparing):
            self._end_preparing()
        match event:
            case Preparing():
                self._preparing = self._preparing or Waiting("preparing", self._output)
                self._preparing(event.done, event.samples)
                if event.done >= event.samples:
                    self._end_preparing()
            case Started():
                self._started = event
                self._screen.say(printable(event.job) or "training", about(event))
                self._screen.begin()
            case Resumed():
                self._resume(event)
            case Saved():
                self._screen.saved(event)
            case Trained():
                self._first = self._first or event
                self._screen.train(event, self._started, seconds_left(self._first, event, self._started))
            case Evaluated():
                self._screen.evaluate(event)
            case Noticed():
                self._screen.note(printable(event.text))
            case Finished():
                self._screen.end()
                self._screen.say(f"Finished: {printable(event.reason)}", summary(event, self._next_command))

    def close(self) -> None:
        self._end_preparing()
        self._screen.end()

    def _resume(self, event: Resumed) -> None:
        if self._started is None:
            self._started = event.started
            title = printable(event.started.job) or "training"
            self._screen.say(f"{title} goes on at step {event.step:,}", about(event.started))
            self._screen.begin()
        if event.checkpoint is None:
            self._screen.note("the run has no checkpoint yet, and begins anew")
        for text in event.notices:
            self._screen.note(printable(text))

    def _end_preparing(self) -> None:
        if self._preparing is not None:
            self._preparing.close()
            self._preparing = None


def seconds_left(first: Trained, latest: Trained, started: Started | None) -> float | None:
    """By the pace since the first record, so that what happens once at the start is not counted; None if unknown."""
    if started is None or started.total_steps is None or not first.step < latest.step < started.total_steps:
        return None
    return (started.total_steps - latest.step) * (latest.seconds - first.seconds) / (latest.step - first.step)


def about(event: Started) -> list[tuple[str, str]]:
    """What is trained, as (label, text); a label that is empty goes on with the one above."""
    samples = f"{count(event.samples)} samples" if event.samples is not None else "samples as they come"
    batches = f"batches of {count(event.batch_size)}"
    split = f" in microbatches of {count(event.microbatch_size)}" if event.microbatch_size < event.batch_size else ""
    lengths = [
        *([_many(event.total_epochs, "epoch")] if event.total_epochs is not None else []),
        *([_many(event.total_steps, "step")] if event.total_steps is not None else []),
    ]
    lines = [
        ("machine", printable(event.machine)),
        ("device", printable(event.device)),
        ("model", f"{count(event.parameters)} parameters"),
        ("data", f"{samples}, {batches}{split}"),
        ("length", ", ".join(lengths) or "as long as the data"),
    ]
    choices = [printable(choice) for choice in event.choices] or ["none: the job as it is"]
    return lines + [("plan" if index == 0 else "", choice) for index, choice in enumerate(choices)]


def summary(event: Finished, next_command: str) -> list[tuple[str, str]]:
    """What a run gave, as (label, text)."""
    length = f"{_many(event.steps, 'step')}, {_many(event.epochs, 'epoch')}, {duration(event.seconds)}"
    lines = [("trained", length)]
    if event.results:
        lines.append(("kept", f"step {event.kept_step:,}: {_results(event.results, ', ')}"))
    if event.skipped_updates:
        lines.append(("skipped", f"{_many(event.skipped_updates, 'update')} with a gradient that was not finite"))
    if event.weights is not None:
        lines.append(("weights", printable(event.weights)))
    if next_command:
        lines.append(("next", printable(next_command)))
    return lines


class _PlainScreen:
    """Lines without a control code, each flushed as it is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def begin(self) -> None:
        """Nothing to begin: every line stands for itself."""

    def end(self) -> None:
        """Nothing to end."""

    def say(self, title: str, lines: list[tuple[str, str]]) -> None:
        for line in plain_block(title, lines):
            self._write(line)

    def train(self, event: Trained, started: Started | None, left: float | None) -> None:
        numbers = "  ".join(f"{label} {value}" for label, value in _numbers(event))
        remaining = f"  {time_left(left)} left" if left is not None else ""
        self._write(f"{_step(event, started)}  {_epoch(event, started)}  {numbers}{remaining}")

    def evaluate(self, event: Evaluated) -> None:
        best = "  best" if event.best else ""
        self._write(f"evaluated at step {event.step:,}  {_results(event.results, '  ')}{best}")

    def saved(self, event: Saved) -> None:
        size, took = byte_size(event.bytes), duration(event.seconds)
        self._write(
            f"saved step {event.step:,}  {size} in {took}, of which training waited {duration(event.stall_seconds)}"
        )

    def note(self, text: str) -> None:
        self._write(f"note: {text}")

    def _write(self, line: str) -> None:
        write_line(self._stream, line)


class _LiveScreen:
    """A block at the bottom that changes in place; everything else scrolls above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.live import Live

        self._console = console_on(stream)
        # Redrawn when something happened, and only then: a run that waits shows that it waits.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._columns: tuple[str, ...] = ()
        self._noted = False

    def begin(self) -> None:
        from rich.text import Text

        self._console.print()
        self._live.start()
        self._live.update(Text("  the first steps are under way …", style="dim"), refresh=True)

    def end(self) -> None:
        self._live.stop()

    def say(self, title: str, lines: list[tuple[str, str]]) -> None:
        draw_block(self._console, title, lines)

    def train(self, event: Trained, started: Started | None, left: float | None) -> None:
        from rich.console import Group

        row = _bar(event, started, f"{time_left(left)} left" if left is not None else "")
        self._live.update(Group("", row, indented(_dials(event)), ""), refresh=True)

    def evaluate(self, event: Evaluated) -> None:
        from rich.text import Text

        names = tuple(event.results)
        if names != self._columns:
            self._columns = names
            if self._noted:
                self._console.print()
            self._console.print(Text(f"  {'step':>9}" + "".join(f"  {_wide(name)}" for name in names), style="dim"))
        line = Text(f"  {event.step:>9,}")
        for name, value in event.results.items():
            line.append(f"  {decimal(value):>{len(_wide(name))}}")
        self._console.print(line.append("  best", style="green") if event.best else line)

    def saved(self, event: Saved) -> None:
        """Not shown: a block that changes in place is looked at for the training, and the end tells what is there."""

    def note(self, text: str) -> None:
        self._noted = True
        self._console.print(labelled([("note", text)]))


def _bar(event: Trained, started: Started | None, remaining: str) -> RenderableType:
    from rich.text import Text

    if started is None or started.total_steps is None:
        return indented(Text(f"{_step(event, started)}   {_epoch(event, started)}"))
    return bar(_epoch(event, started), event.step, started.total_steps, _step(event, started), remaining)


def _dials(event: Trained) -> RenderableType:
    """Labels above their numbers, in columns of fixed width, so that the eye finds each where it was."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 3, 0, 0))
    numbers = _numbers(event)
    for label, _ in numbers:
        grid.add_column(min_width=max(len(label), 9), no_wrap=True)
    grid.add_row(*(Text(label, style="dim") for label, _ in numbers))
    grid.add_row(*(Text(value) for _, value in numbers))
    return grid


def _numbers(event: Trained) -> list[tuple[str, str]]:
    return [
        ("loss", decimal(event.loss)),
        ("learning rate", decimal(event.learning_rate)),
        ("samples/s", per_second(event.samples_per_second)),
        ("memory", byte_size(event.memory_bytes)),
        ("waiting for data", percent(event.data_wait_share)),
    ]


def _step(event: Trained, started: Started | None) -> str:
    total = started.total_steps if started is not None else None
    return f"step {event.step:,}" + (f"/{total:,}" if total is not None else "")


def _epoch(event: Trained, started: Started | None) -> str:
    total = started.total_epochs if started is not None else None
    return f"epoch {event.epoch + 1:,}" + (f"/{total:,}" if total is not None else "")


def _results(results: Mapping[str, float], between: str) -> str:
    return between.join(f"{printable(name)} {decimal(value)}" for name, value in results.items())


def _wide(name: str) -> str:
    return f"{printable(name):>9}"


def _many(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
