"""Output to a stream: drawn on a terminal, plain lines without a control code anywhere else.

Only what draws loads rich, which takes longer to load than most commands run.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from hasten.errors import HastenError
from hasten.facts.formatting import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

Lines = list[tuple[str, str]]  # label and text of each

_LABEL = 10  # columns that a label takes at least, its space included


class Output:
    """Lines that stay and, on a terminal, one block below them that changes in place."""

    def __init__(self, stream: TextIO | None) -> None:
        self.is_plain = is_plain(stream)
        self._stream = stream
        self._live: Live | None = None
        if not self.is_plain:
            from rich.console import Console

            # No text is read as markup.
            self._console = Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)

    def line(self, text: str, style: str = "") -> None:
        text = printable(text)
        if self.is_plain:
            write_line(self._stream, text)
        else:
            from rich.text import Text

            self._console.print(_indented(Text(text, style=style, no_wrap=True, overflow="ellipsis")))

    def note(self, label: str, text: str) -> None:
        label, text = printable(label), printable(text)
        if self.is_plain:
            write_line(self._stream, f"{label}: {text}")
        else:
            self._console.print(_labelled([(label, text)]))

    def titled(self, title: str, lines: Lines) -> None:
        """Labelled texts under a title; an empty title leaves an empty line."""
        title, lines = printable(title), [(label, printable(text)) for label, text in lines]
        if self.is_plain:
            width = _label_width(lines)
            for line in [title, *(f"  {label:<{width}}{text}" for label, text in lines)]:
                write_line(self._stream, line)
        else:
            from rich.text import Text

            self._console.print()
            if title:
                self._console.print(Text(title, style="bold"))
            self._console.print(_labelled(lines))

    def redraw(self, *rows: RenderableType) -> None:
        """Replace the block that changes in place. Of a terminal only."""
        from rich.console import Group
        from rich.live import Live

        if self._live is None:
            # Redrawn only when something happened: a run that waits shows that it waits.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Group(*map(_indented, rows)), refresh=True)

    def close(self) -> None:
        """Remove the block. Lines stay."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def is_plain(stream: TextIO | None) -> bool:
    """True where control codes do not belong. NO_COLOR is honoured as asked for at no-color.org, and more strictly."""
    if stream is None or not hasattr(stream, "isatty") or getattr(stream, "closed", False) or not stream.isatty():
        return True
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def write_line(stream: TextIO | None, line: str) -> None:
    """A plain line, flushed; what the stream's encoding lacks becomes a question mark. Raises OSError for None, as
    Python has it where the stream was closed before the start."""
    if stream is None:
        raise OSError("standard output is closed")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    if hasattr(stream, "flush"):
        stream.flush()


def show(title: str, lines: Lines, stream: TextIO | None = None) -> None:
    """Print labelled texts under a title; an empty title leaves an empty line."""
    Output(stream or sys.stdout).titled(title, lines)


def failure_block(error: HastenError) -> Lines:
    """The place comes first: it is often the subject."""
    place = f"{error.where}: " if error.where else ""
    return [("error", place + error.what), *([("fix", error.fix)] if error.fix else [])]


def bar(label: str, done: float, whole: float, *texts: str) -> RenderableType:
    """One row: how much is done of the whole, with texts behind it, the last one dim."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    for number in range(len(texts)):
        row.add_column(no_wrap=True, style="dim" if number == len(texts) - 1 else "")
    drawn = ProgressBar(whole, done, style="bright_black", complete_style="cyan", finished_style="cyan")
    row.add_row(Text(printable(label)), drawn, *map(Text, texts))
    return row


def _labelled(lines: Lines) -> RenderableType:
    """Labels on the left; a text that is too long continues below itself."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_label_width(lines) - 1, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        label_style = {"note": "yellow", "error": "bold red"}.get(label, "dim")
        grid.add_row(Text(label, style=label_style), Text(text, style="bold cyan" if label == "next" else ""))
    return _indented(grid)


def _label_width(lines: Lines) -> int:
    return max([_LABEL, *(len(label) + 2 for label, _ in lines)])


def _indented(drawn: RenderableType) -> RenderableType:
    from rich.padding import Padding

    return Padding(drawn, (0, 0, 0, 2))
