"""Progress of a run on the terminal.

A terminal or a notebook gets a quiet block that changes in place: a bar, and five numbers that always stand at the same
spot. Notes and evaluations scroll above it. Anything else (a pipe, a file, a dumb terminal, NO_COLOR) gets one plain
line a fact, shorter than 100 columns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO

from hasten.facts.events import Evaluated, Event, Finished, Noticed, Preparing, Resumed, Saved, Started, Trained
from hasten.facts.formatting import byte_size
from hasten.report.display import count, decimal, duration, many, per_second, percent, time_left
from hasten.report.sentence import run_sentence
from hasten.report.terminal.output import Lines, Output, bar
from hasten.report.terminal.progress_bar import ProgressBar

if TYPE_CHECKING:
    from rich.console import RenderableType


class Progress:
    """A receiver of a run's events.

    stream: where to write; None is the present standard output.
    next_command: what the result offers to do next; empty offers nothing.
    quiet: only the notes and the result. result: what to do with the result; None writes it to the stream, with `more`
    below it.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        next_command: str = "",
        quiet: bool = False,
        result: Callable[[Finished], None] | None = None,
        more: Callable[[], Lines] = list,
    ) -> None:
        self._stream: TextIO | None = stream or sys.stdout
        self._output = Output(self._stream)
        self._next_command, self._quiet = next_command, quiet
        self._result, self._more = result or self._show_result, more
        self._preparing: ProgressBar | None = None
        self._started: Started | None = None
        self._first: Trained | None = None
        self._last: Trained | None = None

    def log(self, event: Event) -> None:
        if not isinstance(event, Preparing):
            self._end_preparing()
        if isinstance(event, Trained):
            self._first, self._last = self._first or event, event
        match event:
            case Finished():
                self._output.close()
                self._result(event)
            case Noticed():
                self._output.note("note", event.text)
            case Resumed():
                self._resume(event)
            case _ if self._quiet:
                pass
            case Preparing():
                self._preparing = self._preparing or ProgressBar("preparing", self._stream)
                self._preparing(event.done, event.samples)
                if event.done >= event.samples:
                    self._end_preparing()
            case Started():
                self._begin(event, "Training")
            case Saved():
                self._save(event)
            case Trained():
                self._train(event, seconds_left(self._first or event, event, self._started))
            case Evaluated():
                best = "  best" if event.best else ""
                text = f"evaluated at step {event.step:,}  {_results(event.results, '  ')}{best}"
                self._output.line(text, "green" if event.best else "")

    def close(self) -> None:
        self._end_preparing()
        self._output.close()

    def _show_result(self, event: Finished) -> None:
        self._output.result(run_sentence(event), [*facts(event, self._last), *self._more()], self._next_command)

    def _begin(self, started: Started, doing: str, place: str = "") -> None:
        self._started = started
        if self._quiet:
            return
        self._output.titled(f"{doing} {started.job}".rstrip() + place, about(started))
        if not self._output.is_plain:
            from rich.text import Text

            self._output.redraw("", Text("the first steps are under way …", style="dim"))

    def _resume(self, event: Resumed) -> None:
        if self._started is None:
            self._begin(event.started, "Resuming", f" at step {event.step:,}")
        if event.checkpoint is None:
            self._output.note("note", "the run has no checkpoint yet, and starts from the beginning")
        for text in event.notices:
            self._output.note("note", text)

    def _save(self, event: Saved) -> None:
        if self._output.is_plain:  # the block of a terminal is about the training
            size, took = byte_size(event.bytes), duration(event.seconds)
            waited = f"of which training waited {duration(event.stall_seconds)}"
            self._output.line(f"saved step {event.step:,}  {size} in {took}, {waited}")

    def _train(self, event: Trained, left: float | None) -> None:
        remaining = f"{time_left(left)} left" if left is not None else ""
        started = self._started
        step = _of("step", event.step, started.total_steps if started else None)
        epoch = _of("epoch", event.epoch + 1, started.total_epochs if started else None)
        if self._output.is_plain:
            self._output.line("  ".join(filter(None, [step, epoch, *_in_a_line(event), remaining])))
        elif started is None or started.total_steps is None:
            self._output.redraw("", f"{step}   {epoch}", _dials(event), "")
        else:
            done = bar(epoch, event.step, started.total_steps, step, remaining)
            self._output.redraw("", done, _dials(event), "")

    def _end_preparing(self) -> None:
        if self._preparing is not None:
            self._preparing.close()
            self._preparing = None


def seconds_left(first: Trained, latest: Trained, started: Started | None) -> float | None:
    """By the pace since the first record, so what happens once at the start is not counted; None if unknown."""
    if started is None or started.total_steps is None or not first.step < latest.step < started.total_steps:
        return None
    return (started.total_steps - latest.step) * (latest.seconds - first.seconds) / (latest.step - first.step)


def about(event: Started) -> Lines:
    """What is trained. An empty label continues the one above."""
    samples = f"{count(event.samples)} samples" if event.samples is not None else "an unknown number of samples"
    batches = f"batches of {count(event.batch_size)}"
    split = f" in microbatches of {count(event.microbatch_size)}" if event.microbatch_size < event.batch_size else ""
    lengths = [
        *([many(event.total_epochs, "epoch")] if event.total_epochs is not None else []),
        *([many(event.total_steps, "step")] if event.total_steps is not None else []),
    ]
    lines = [
        ("machine", event.machine),
        ("device", event.device),
        ("model", f"{count(event.parameters)} parameters"),
        ("data", f"{samples}, {batches}{split}"),
        ("length", ", ".join(lengths) or "as long as the data"),
    ]
    choices = event.choices or ["none: the baseline"]
    return lines + [("plan" if index == 0 else "", choice) for index, choice in enumerate(choices)]


def facts(event: Finished, last: Trained | None) -> Lines:
    """What belongs to the result of a run. last: the last line of its log."""
    lines: Lines = []
    if last is not None:
        lines.append(("memory", f"{byte_size(last.memory_bytes)} at the peak"))
    if event.skipped_updates:
        lines.append(("skipped", f"{many(event.skipped_updates, 'update')} with a gradient that was not finite"))
    return [*lines, ("weights", event.weights)] if event.weights is not None else lines


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


def _in_a_line(event: Trained) -> list[str]:
    """Short enough for one line of a log; the memory is in the result."""
    return [
        f"loss {decimal(event.loss)}",
        *(f"{name} {decimal(mean)}" for name, mean in event.parts.items()),
        f"lr {decimal(event.learning_rate)}",
        f"{per_second(event.samples_per_second)} samples/s",
        f"wait {percent(event.data_wait_share)}",
    ]


def _numbers(event: Trained) -> Lines:
    return [
        ("loss", decimal(event.loss)),
        *((name, decimal(mean)) for name, mean in event.parts.items()),
        ("learning rate", decimal(event.learning_rate)),
        ("samples/s", per_second(event.samples_per_second)),
        ("memory", byte_size(event.memory_bytes)),
        ("waiting for data", percent(event.data_wait_share)),
    ]


def _of(what: str, number: int, total: int | None) -> str:
    return f"{what} {number:,}" + (f"/{total:,}" if total is not None else "")


def _results(results: Mapping[str, float], between: str) -> str:
    return between.join(f"{name} {decimal(value)}" for name, value in results.items())
