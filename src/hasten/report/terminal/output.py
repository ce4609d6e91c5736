"""What is shown goes to a stream: a terminal that can draw, or anything else, which gets plain lines.

rich takes longer to load than most commands take, so only what draws loads it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from hasten.errors import HastenError
from hasten.facts.formatting import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LABEL = 10  # columns that a label takes at least, its space included


def is_plain(stream: TextIO) -> bool:
    """True where control codes do not belong. NO_COLOR is honoured as asked for at no-color.org, and more strictly."""
    return not stream.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")


def write_line(stream: TextIO, line: str) -> None:
    """A line without a control code; what the stream's encoding lacks becomes a question mark."""
    encoding = stream.encoding or "utf-8"
    stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()


def console_on(stream: TextIO) -> Console:
    """For drawing on a terminal. It takes no text for markup."""
    from rich.console import Console

    return Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)


def show(title: str, lines: list[tuple[str, str]], stream: TextIO | None = None) -> None:
    """Print labelled texts as the summary of a run is printed; an empty title leaves an empty line."""
    output = stream or sys.stdout
    lines = [(label, printable(text)) for label, text in lines]
    if is_plain(output):
        for line in plain_block(printable(title), lines):
            write_line(output, line)
    else:
        draw_block(console_on(output), printable(title), lines)


def plain_block(title: str, lines: list[tuple[str, str]]) -> list[str]:
    width = label_width(lines)
    return [title, *(f"  {label:<{width}}{text}" for label, text in lines)]


def draw_block(console: Console, title: str, lines: list[tuple[str, str]]) -> None:
    from rich.text import Text

    console.print()
    if title:
        console.print(Text(title, style="bold"))
    console.print(labelled(lines))


def failure_block(error: HastenError) -> list[tuple[str, str]]:
    """Labels and texts, in the order in which they are read. The place comes first: it is often the subject."""
    place = f"{error.where}: " if error.where else ""
    return [("error", place + error.what), *([("fix", error.fix)] if error.fix else [])]


def labelled(lines: list[tuple[str, str]]) -> RenderableType:
    """Labels on the left; a text that is too long goes on below itself."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=label_width(lines) - 1, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in lines:
        label_style = {"note": "yellow", "error": "bold red"}.get(label, "dim")
        grid.add_row(Text(label, style=label_style), Text(text, style="bold cyan" if label == "next" else ""))
    return indented(grid)


def label_width(lines: list[tuple[str, str]]) -> int:
    return max([LABEL, *(len(label) + 2 for label, _ in lines)])


def bar(label: str, done: float, whole: float, *texts: str) -> RenderableType:
    """One row, indented: how much is done of the whole, with texts behind it, the last one dim."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 2), expand=True)
    row.add_column(no_wrap=True)
    row.add_column(ratio=1)
    for number in range(len(texts)):
        row.add_column(no_wrap=True, style="dim" if number == len(texts) - 1 else "")
    drawn = ProgressBar(whole, done, style="bright_black", complete_style="cyan", finished_style="cyan")
    row.add_row(Text(label), drawn, *map(Text, texts))
    return indented(row)


def indented(drawn: RenderableType) -> RenderableType:
    from rich.padding import Padding

    return Padding(drawn, (0, 0, 0, 2))
