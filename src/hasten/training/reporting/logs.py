"""Receivers that keep a run's events: in a file of JSON lines, or in TensorBoard. And what hands events to receivers.

A loss that became NaN is the most important line of a log, so no number is filtered, clipped or replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from dataclasses import fields as fields_of
from functools import partial
from pathlib import Path
from typing import Any, cast

from hasten.checkpoint.files import GrowingFile
from hasten.errors import RAISED, StorageFailed, Unavailable
from hasten.facts.events import AnyReceiver, Evaluated, Event, Noticed, Preparing, Receiver, Resumed, Saved, Trained
from hasten.facts.formatting import as_json
from hasten.training.failures.user_code import user_code_failed

_NOT_OF_THE_TRAINING = (Preparing, Resumed, Saved)


class JsonLines:
    """One line of JSON for each event: its kind under "event", then its fields.

    A number that is not finite is written as the text "NaN", "Infinity" or "-Infinity", from which float(...) gives the
    number. Text is in ASCII, because some readers also end a line at characters such as U+2028.

    Lines are added to a file that exists. Saves and resumes leave no line, so a run that was killed has the file of
    one that was not. A line that the disk refuses waits, and is tried again with the next.

    Raises StorageFailed when the file cannot be opened, and on close, when a line is still waiting.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = GrowingFile(Path(path))
        self._waiting: list[bytes] = []

    def log(self, event: Event) -> None:
        if isinstance(event, _NOT_OF_THE_TRAINING):
            return
        fields = {"event": type(event).__name__.lower()} | {
            each.name: getattr(event, each.name) for each in fields_of(event)
        }
        if not fields.get("parts", True):
            del fields["parts"]
        self._waiting.append(json.dumps(as_json(fields), allow_nan=False).encode("ascii"))
        with suppress(StorageFailed):  # it is written with a later line
            self._write()

    def bytes(self) -> int:
        """How long the file is. Raises StorageFailed when a line is still waiting."""
        self._write()
        return self._file.size()

    def force(self) -> None:
        """To the disk; may be called from another thread. Raises StorageFailed."""
        self._file.force()

    def close(self) -> None:
        try:
            self._write()
        finally:
            self._file.close()

    def _write(self) -> None:
        while self._waiting:
            self._file.add_line(self._waiting[0])
            del self._waiting[0]


class TensorBoard:
    """The numbers of a run as TensorBoard scalars: train/… and evaluation/…, over optimizer steps.

    The folder is made when training begins. A resumed run hides what was written of later steps before. Raises
    Unavailable when the package `tensorboard` is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise Unavailable(
                f"TensorBoard cannot be used: {error}", fix='pip install "hasten[tensorboard]"'
            ) from error
        self._open: Callable[..., Any] = partial(SummaryWriter, str(folder))
        self._writer: Any = None

    def log(self, event: Event) -> None:
        if self._writer is None:
            if isinstance(event, Preparing | Noticed):
                return
            self._writer = self._open(purge_step=event.step + 1) if isinstance(event, Resumed) else self._open()
        if isinstance(event, Trained):
            numbers = asdict(event)
            for name in ("step", "seconds"):  # the axes that TensorBoard has anyway
                del numbers[name]
            numbers |= numbers.pop("parts")
            self._add("train", numbers, event.step)
        elif isinstance(event, Evaluated):
            self._add("evaluation", event.results, event.step)
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add(self, group: str, numbers: Mapping[str, float | None], step: int) -> None:
        for name, number in numbers.items():
            if number is not None:
                self._writer.add_scalar(f"{group}/{name}", number, step)


class Called:
    """A receiver that calls a function with each event."""

    def __init__(self, function: Callable[[Event], object]) -> None:
        self._function, self.name = function, getattr(function, "__name__", type(function).__name__)

    def log(self, event: Event) -> None:
        self._function(event)

    def close(self) -> None:
        """Nothing to close."""


def as_receiver(given: AnyReceiver) -> Receiver:
    if hasattr(given, "log") and hasattr(given, "close"):
        return cast("Receiver", given)
    return Called(cast("Callable[[Event], object]", given))


class Several:
    """Hands every event to each receiver, in their order.

    shown: what they raise never ends a run. One that raises is dropped, and the others receive a notice of it.
    kept: called first; what they raise passes through, and they are not closed.
    say: shows a text about a receiver that could not be closed.
    """

    def __init__(self, shown: list[Receiver], say: Callable[[str], None], kept: Sequence[Receiver] = ()) -> None:
        self._shown, self._say, self._kept = shown, say, kept
        self._closed_at_the_end, self.dropped = [*shown], list[str]()

    def after(self, *kept: Receiver) -> Several:
        """The same receivers, called after these."""
        return Several(self._shown, self._say, kept)

    def log(self, event: Event) -> None:
        for receiver in self._kept:
            receiver.log(event)
        failed = list[str]()
        for receiver in [*self._shown]:
            try:
                receiver.log(event)
            except RAISED as error:
                self._shown[:] = [each for each in self._shown if each is not receiver]
                failed.append(f"{_named(receiver)} failed and is not called any more: {_reason(error)}")
        self.dropped += failed
        for text in failed:
            self.log(Noticed(text=text))

    def close(self) -> None:
        for receiver in self._closed_at_the_end:
            try:
                receiver.close()
            except RAISED as error:
                if any(each is receiver for each in self._shown):  # else it has failed before
                    self._say(f"{_named(receiver)} failed when it was closed: {_reason(error)}")


def _named(receiver: Receiver) -> str:
    return f"the receiver {receiver.name if isinstance(receiver, Called) else type(receiver).__name__}"


def _reason(error: BaseException) -> str:
    """What was raised, and the line of the user's code."""
    failure = user_code_failed(error)
    return f"{type(error).__name__}: {error}" if failure is None else f"{failure.what} ({failure.where})"
